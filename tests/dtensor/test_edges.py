"""Where results, errors and memory could differ from NumPy's, or by rank."""

import copy

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.errors import ArgumentError, MismatchError, UnsupportedError

from .support import same


def on_ranks(ranks, check):
    """Run a check with a mesh of one axis."""

    def body(group):
        check(group, hp.init_device_mesh((group.size,), ("a",), group=group))
        assert group.all_reduce(1) == group.size

    with np.errstate(all="ignore"):
        ranks(body)


def lay(a, mesh, placement=None, dtype=None):
    return hp.distribute(np.array(a, dtype), mesh, placement or hp.Shard(0))


@pytest.mark.sizes(1, 2, 3)
def test_pending_sums_take_no_step_that_parts_cannot(ranks):
    def check(group, mesh):
        s = lay([1.0, 0.0], mesh).sum()
        assert float(s / 0.0) == float(s * np.inf) == np.inf
        assert float(lay([1.0, -3.0], mesh).sum() / 0.0) == -np.inf
        factor = lay(np.inf, mesh, hp.Replicate())
        assert float(s * factor) == np.inf
        wrapped = lay([200, 100], mesh, dtype=np.uint8).sum(dtype=np.uint8)
        assert (int(wrapped), float(wrapped / 2)) == (44, 22.0)
        halves = lay([60000, 60000, -60000, 1], mesh, dtype=np.float16).sum()
        assert float(halves) == 60000
        assert halves.dtype == np.float16
        s += 1
        assert float(s) == 2
        assert f"{s:.2f}" == "2.00"

    on_ranks(ranks, check)


@pytest.mark.sizes(1, 2, 3)
def test_nothing_is_written_where_nobody_sees_it(ranks):
    def check(group, mesh):
        x = lay(np.ones((4, 4)), mesh)
        with hp.dtensor.fallback("gather"):
            for write in (
                lambda: np.copyto(x, 0.0),
                lambda: np.fill_diagonal(x, 5.0),
            ):
                with pytest.raises(ValueError, match="read-only"):
                    write()
            with pytest.raises(UnsupportedError, match=r"add\.at: has no rule"):
                np.add.at(x, (0, 0), 7.0)
            with pytest.raises(UnsupportedError, match="out= has no rule"):
                np.matmul(x, x, out=x)
        assert x.full().sum() == 16
        columns = lay(np.zeros((4, 4)), mesh, hp.Shard(1))
        flat = columns.ravel()
        if group.size > 1:
            with pytest.raises(ValueError, match="read-only"):
                flat[0] = 1
            with pytest.raises(ValueError, match="read-only"):
                flat += 1
        assert columns.full().sum() == 0
        mine = columns.flatten()
        mine += 1
        assert (mine.full().sum(), columns.full().sum()) == (16, 0)
        with pytest.raises(ValueError, match="read-only"):
            np.broadcast_to(x, (2, 4, 4))[0] = 1
        with pytest.raises(UnsupportedError, match="x @= y"):
            x @= x
        with pytest.raises(UnsupportedError, match="copy=False"):
            np.nan_to_num(x, copy=False)

    on_ranks(ranks, check)


@pytest.mark.sizes(1, 2, 3)
def test_copies_are_copies(ranks):
    def check(group, mesh):
        a = np.arange(6.0)
        for placement in (hp.Shard(0), hp.Replicate()):
            x = lay(a, mesh, placement)
            for made in (np.roll(x, 0), np.roll(x, 6), copy.deepcopy(x), x.copy(), x.flatten()):
                made += 1
            one = x[0]
            one += 1
            assert float(one) == 1
            taken = np.take(lay(np.ones((2, 3)), mesh, placement), 0, axis=0)
            taken += 1
            same(x, a)
        z = lay([1j, 2, 3, 4], mesh)
        for i in range(4):
            v = z[i]
            v += 1
        same(z, np.array([1j, 2, 3, 4]))

    on_ranks(ranks, check)


@pytest.mark.sizes(1, 2, 3)
def test_two_exchanges_of_one_plan_at_once(ranks):
    def check(group, mesh):
        size, me = group.size, group.rank
        src = [((4 * r, 4 * r + 4),) for r in range(size)]
        plan = hp.plan_exchange(src, src[1:] + src[:1], "float64", group=group)
        a, b = np.full(4, 1.0 + me), np.full(4, 10.0 + me)
        works = [plan(a, async_op=True), plan(b, async_op=True)]
        after = (me + 1) % size
        assert [work.wait().tolist() for work in works] == [[1.0 + after] * 4, [10.0 + after] * 4]

    on_ranks(ranks, check)


@pytest.mark.sizes(2, 3)
def test_all_ranks_hear_of_what_one_holds(ranks):
    def check(group, mesh):
        whole = lay([0] * 6, mesh, dtype=np.int8)
        for value, kind in ((300, OverflowError), (np.nan, ValueError), (1j, TypeError)):
            with pytest.raises(kind):
                whole[5] = value
        bad = np.ones((2, 3)) if group.rank == 0 else np.empty(0)
        with pytest.raises(MismatchError, match="the parts are"):
            hp.dtensor.from_local(bad, mesh, hp.Shard(0))
        with pytest.raises(MismatchError, match="the parts are"):
            hp.dtensor.from_local([1] if group.rank else np.ones(1), mesh, hp.Shard(0))
        with pytest.raises(UnsupportedError, match=r"\[on the root, rank 1\]"):
            hp.distribute(None, mesh, hp.Shard(0), root=1)

    on_ranks(ranks, check)


@pytest.mark.sizes(2, 3)
def test_a_rank_outside_the_mesh_computes_nothing(ranks):
    def check(group, mesh):
        some = hp.DeviceMesh([0], ("s",), group=group)
        x = hp.distribute(np.arange(3.0), some, hp.Replicate())
        calls = (lambda: x.sum(), lambda: x.full(), lambda: np.sort(x), lambda: x.reshape(3, 1))
        for call in calls:
            if group.rank:
                with pytest.raises(UnsupportedError, match="this rank is not in"):
                    call()
            else:
                call()

    on_ranks(ranks, check)


@pytest.mark.sizes(1, 2, 3)
def test_dtypes_and_bits_are_numpys(ranks):
    def check(group, mesh):
        for dtype in ("bool", "int8", "int32", "float32", "complex64", ">f8", ">i4"):
            a = np.array([[1, 0, 1], [0, 0, 1]], dtype)
            x = lay(a, mesh)
            same(x**2, a**2)
            same(x.conj(), a.conj())
            for order in (None, 1, 2, np.inf, 0):
                same(np.linalg.norm(x, order, axis=0), np.linalg.norm(a, order, axis=0), 1e-6)
            same(x.mean(0), a.mean(0))
            if np.dtype(dtype).kind != "c":
                same(x.var(0), a.var(0), 1e-6)
            same(np.zeros_like(x, np.float32), np.zeros_like(a, np.float32))
        small = np.array([-128, 1], np.int8)
        for order in (1, np.inf, -np.inf):
            same(np.linalg.norm(lay(small, mesh), order), np.asarray(np.linalg.norm(small, order)))
        same(np.clip(lay(small, mesh), None, 300), np.clip(small, None, 300))
        z = np.array([1 + 2j, 3 - 1j, 0.3j])
        for power in (2, -1, 0.5):
            same(lay(z, mesh) ** power, z**power)
        minus = np.cumsum(lay([-0.0, -0.0, -0.0], mesh)).full()
        assert np.signbit(minus).all()
        numbers = lay(np.arange(1000), mesh)
        for dtype in (np.int8, np.uint64):
            same(numbers[lay([1, 2], mesh, dtype=dtype)], np.array([1, 2]))
        same(np.pad(lay(5.0, mesh, hp.Replicate()), 0), np.array(5.0))
        x = lay([3, 1, 2], mesh)
        x.sort()
        assert x.tolist() == [1, 2, 3]

    on_ranks(ranks, check)


@pytest.mark.sizes(1, 2)
def test_what_is_refused(ranks):
    def check(group, mesh):
        x = lay(np.arange(6.0).reshape(2, 3), mesh)
        with pytest.raises(ArgumentError, match="no parts to reduce"):
            hp.dtensor.random.uniform(hp.random.Key(1), (3,), mesh, hp.Partial())
        with pytest.raises(UnsupportedError, match="no rule"):
            np.real_if_close(x)
        with pytest.raises(UnsupportedError, match="out= has no rule"):
            np.max(x, out=x)
        with pytest.raises(UnsupportedError, match="initial= has no rule"):
            np.sum(x, initial=True)
        for wrong in (
            lambda: np.transpose(x, (3, 0)),
            lambda: np.expand_dims(x, (0, 0)),
            lambda: np.stack([x, 1.0]),
            lambda: np.einsum("ij,jk->ik", x, x),
        ):
            with pytest.raises(ArgumentError):
                wrong()
        with pytest.raises(UnsupportedError, match="einsum: dtype have no rule"):
            np.einsum("ij->ji", x, dtype="float32")
        with pytest.raises(UnsupportedError, match="concatenate: dtype"):
            np.concatenate([x, x], dtype="float32")
        with pytest.raises(TypeError, match="integer"):
            np.take(x, 1.7)
        with hp.dtensor.implicit_replication(), pytest.raises(UnsupportedError, match="masked"):
            x + np.ma.masked_array([1, 2, 3], [1, 0, 0])
        assert np.add(1, 2, out=x) is x
        assert x.full().tolist() == [[3] * 3] * 2
        x[x > 2] = x.mean() + 1
        assert x.full().tolist() == [[4] * 3] * 2
        if group.size > 1:
            with pytest.raises(UnsupportedError, match="complex numbers over a sharded axis"):
                lay([1 + 2j, 3], mesh).max()

    on_ranks(ranks, check)
