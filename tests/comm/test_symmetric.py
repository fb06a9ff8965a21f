"""Symmetric arrays: what they are, that verbs give the same with them, and that they come back."""

import gc
import threading

import ml_dtypes
import numpy as np
import pytest

import hpcpar as hp
from hpcpar.comm.heap import PAGE, find_gap
from hpcpar.errors import ArgumentError, MismatchError, UnsupportedError

symmetric = hp.symmetric
DTYPES = ["float32", "float64", "int16", ml_dtypes.bfloat16, "complex64", "bool"]
BIG = 300_001  # several chunks, and nothing that ranks divide


def has_engine(group):
    return group.backend in ("node", "threads") and group.size > 1


def values(rank, count, dtype="float64"):
    """Small whole numbers, different on each rank: their sums are exact."""
    return ((np.arange(count) * (rank + 3)) % 7).astype(dtype)


def filled(group, count, dtype="float64"):
    x = symmetric.empty(count, dtype, group=group)
    x[...] = values(group.rank, count, dtype)
    return x


# -- what they are -------------------------------------------------------------------------


def test_an_array_is_like_any_other(ranks):
    def body(group):
        x = symmetric.empty((3, 5), "float32", group=group)
        assert (x.shape, x.dtype, x.flags.c_contiguous, x.flags.writeable) == (
            (3, 5),
            np.float32,
            True,
            True,
        )
        assert symmetric.is_symmetric(x, group=group) == has_engine(group)
        if has_engine(group):
            assert x.ctypes.data % PAGE == 0
        assert (symmetric.zeros((2, 2), group=group) == 0).all()
        like = symmetric.empty_like(np.ones((4, 2), ">i4").T, group=group)
        assert (like.shape, like.dtype) == ((2, 4), np.int32)
        assert symmetric.empty(0, group=group).shape == (0,)
        assert symmetric.empty((), "int8", group=group).shape == ()

    ranks(body)


def test_views_are_recognised_and_others_are_not(ranks):
    def body(group):
        x = symmetric.zeros(100, group=group)
        for view in (x[3:], x[::2], x[::-1], x.reshape(10, 10).T, x.view("int8")[5:9]):
            assert symmetric.is_symmetric(view, group=group) == has_engine(group)
        for other in (x.copy(), x + 1, x[:0], 3, None, [1.0]):
            assert not symmetric.is_symmetric(other, group=group)

    ranks(body)


# -- verbs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 5_000, BIG])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_reduce_gives_the_same_bits(ranks, dtype, count):
    def body(group):
        plain = group.all_reduce(values(group.rank, count, dtype))
        x, y = filled(group, count, dtype), symmetric.zeros(count, dtype, group=group)
        assert group.all_reduce(x, out=y) is y
        assert y.tobytes() == plain.tobytes()
        assert x.tobytes() == values(group.rank, count, dtype).tobytes()
        group.all_reduce(x, out=x)
        assert x.tobytes() == plain.tobytes()
        assert group.all_reduce(filled(group, count, dtype)).tobytes() == plain.tobytes()

    ranks(body)


def test_means_and_random_floats_give_the_same_bits(ranks):
    def body(group):
        x = filled(group, BIG, "float32")
        x *= np.random.default_rng(group.rank).standard_normal(BIG).astype("float32")
        for how in ({"op": "mean"}, {"op": "mean", "weight": group.rank + 1.0}, {"op": "max"}):
            plain = group.all_reduce(x.copy(), **how)
            y = symmetric.zeros(BIG, "float32", group=group)
            assert group.all_reduce(x, out=y, **how).tobytes() == plain.tobytes()

    ranks(body)


VERBS = {
    "reduce": lambda group, x: group.reduce(x, root=group.size - 1),
    "reduce_scatter": lambda group, x: group.reduce_scatter(x),
    "all_gather": lambda group, x: group.all_gather(x),
    "uneven all_gather": lambda group, x: group.all_gather(x[: len(x) // (group.rank + 1)]),
    "gather": lambda group, x: group.gather(x, root=0),
    "broadcast": lambda group, x: group.broadcast(x, root=group.size - 1),
    "scatter": lambda group, x: group.scatter(x if group.rank == 0 else None, root=0),
    "all_to_all": lambda group, x: group.all_to_all(x),
    "scan": lambda group, x: group.scan(x),
    "exclusive scan": lambda group, x: group.scan(x, exclusive=True),
    "in place scan": lambda group, x: group.scan(x, out=x),
    "in place broadcast": lambda group, x: group.broadcast(x, root=0, out=x),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("count", [7, 40_000, BIG])
def test_other_verbs_give_the_same(ranks, verb, count):
    def body(group):
        call = VERBS[verb]
        for shift in (0, 3 * group.rank):  # the same place on all ranks, another on each
            base = symmetric.zeros(count + 100, group=group)
            x = base[shift : shift + count]
            x[...] = values(group.rank, count)
            plain = call(group, x.copy())
            for _ in range(2):  # the long way, then the hot path
                got = call(group, x)
                assert np.array_equal(got, plain) if plain is not None else got is None
                if "in place" in verb:
                    x[...] = values(group.rank, count)
            assert (base[:shift] == 0).all()
            assert (base[shift + count :] == 0).all()
            assert np.array_equal(x, values(group.rank, count))

    ranks(body)


@pytest.mark.sizes(2, 3, 4)
def test_only_some_ranks_have_symmetric_arrays(ranks):
    def body(group):
        x, y = filled(group, BIG), symmetric.zeros(BIG, group=group)
        want = sum(values(r, BIG) for r in range(group.size))
        if group.rank == group.size - 1:
            x, y = x.copy(), y.copy()
        assert np.array_equal(group.all_reduce(x, out=y), want)
        assert np.array_equal(group.all_reduce(x, out=np.zeros(BIG)), want)
        parts = group.all_gather(x).reshape(group.size, BIG)
        assert all(np.array_equal(parts[r], values(r, BIG)) for r in range(group.size))

    ranks(body)


def test_results_that_lie_in_another_array_of_the_block(ranks):
    """Neighbours in one block are not touched, whatever overlaps between ranks."""

    def body(group):
        base = symmetric.zeros(3 * BIG, group=group)
        x, out = base[:BIG], base[BIG : 2 * BIG]
        x[...] = values(group.rank, BIG)
        group.all_reduce(x, out=out)
        assert np.array_equal(out, sum(values(r, BIG) for r in range(group.size)))
        assert np.array_equal(x, values(group.rank, BIG))
        assert (base[2 * BIG :] == 0).all()

    ranks(body)


def test_asynchronous_calls_and_subgroups(ranks):
    def body(group):
        arrays = [filled(group, BIG) for _ in range(3)]
        works = [group.all_reduce(x, out=x, async_op=True) for x in arrays]
        want = sum(values(r, BIG) for r in range(group.size))
        assert all(np.array_equal(work.wait(), want) for work in works)
        half = group.split(group.rank % 2)
        members = [r for r in range(group.size) if r % 2 == group.rank % 2]
        x = symmetric.empty(BIG, group=half)
        x[...] = values(group.rank, BIG)
        half.all_reduce(x, out=x)
        assert np.array_equal(x, sum(values(r, BIG) for r in members))
        # An array of the whole group serves in a part of it, too.
        y = filled(group, BIG)
        half.all_reduce(y, out=y)
        assert np.array_equal(y, x)

    ranks(body)


# -- memory --------------------------------------------------------------------------------


@pytest.mark.sizes(2, 3)
def test_memory_is_used_again_when_all_ranks_have_dropped_it(ranks):
    def body(group):
        if not has_engine(group):
            return
        gc.collect()  # what other tests have left
        group.barrier()
        first = symmetric.empty(10_000, group=group)
        place = first.ctypes.data
        view = first[5:6]
        keeps = group.rank == group.size - 1
        del first
        if not keeps:
            del view
        gc.collect()
        group.barrier()
        second = symmetric.empty(10_000, group=group)  # one rank has a view yet
        assert second.ctypes.data != place
        view = None
        gc.collect()
        group.barrier()
        third = symmetric.zeros(10_000, group=group)
        assert third.ctypes.data == place
        del second, third

    ranks(body)


@pytest.mark.sizes(2)
def test_many_arrays_take_the_memory_of_few(ranks):
    def body(group):
        if not has_engine(group):
            return
        places = set()
        for number in range(60):
            x = symmetric.empty(50_000 + number % 7, group=group)
            x[...] = group.rank
            group.all_reduce(x, out=x)
            assert x[-1] == sum(range(group.size))
            places.add(x.ctypes.data)
            del x
            gc.collect(0)  # the whole heap takes long
            group.barrier()
        assert len(places) <= 3

    ranks(body)


@pytest.mark.sizes(3, 4)
def test_arrays_of_groups_with_common_members_lie_apart(ranks):
    def body(group):
        kept = []
        for number, pair in enumerate([(0, 1), (1, 2), (0, 2), (2, 1)] * 3):
            if group.rank in pair:
                part = group.subgroup(pair)
                x = symmetric.empty(30_000, group=part)
                x[...] = number
                kept.append((part, x, number))
        group.barrier()
        for part, x, number in kept:
            assert (x == number).all()
            part.all_reduce(x, out=x)
            assert (x == 2 * number).all()
        group.barrier()

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_two_threads_may_make_arrays_of_their_own_groups(ranks):
    def body(group):
        everyone = list(range(group.size))
        parts = [group.subgroup(everyone[::-1]), group.subgroup(everyone[1:] + everyone[:1])]
        if group.size == 2:
            parts[1] = group
        kept = [[], []]

        def make(which):
            for number in range(15):
                x = symmetric.empty(5_000, group=parts[which])
                x[...] = 100 * which + number
                kept[which].append(x)

        threads = [threading.Thread(target=make, args=(which,)) for which in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for which in (0, 1):
            assert len(kept[which]) == 15
            assert all((x == 100 * which + n).all() for n, x in enumerate(kept[which]))
        group.barrier()

    ranks(body)


def test_an_array_outlives_its_group(ranks):
    def body(group):
        part = group.subgroup(range(group.size))
        x = symmetric.zeros(1000, group=part)
        part.close()
        x += group.rank
        assert (group.all_reduce(x, out=x) == sum(range(group.size))).all()

    ranks(body)


# -- refusals ------------------------------------------------------------------------------


def test_bad_arguments_are_refused(ranks):
    def body(group):
        with pytest.raises(ArgumentError, match=r"symmetric.empty: shape \(2, -1\)"):
            symmetric.empty((2, -1), group=group)
        with pytest.raises(UnsupportedError, match="Python objects"):
            symmetric.zeros(3, object, group=group)
        with pytest.raises(ArgumentError, match="lengths"):
            symmetric.zeros((1.5,), group=group)
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize(
    ("field", "mine"), [("shape", {"shape": (3,)}), ("dtype", {"dtype": "int64"})]
)
def test_ranks_that_disagree_are_told(ranks, field, mine):
    def body(group):
        if not has_engine(group):
            return
        how = {"shape": (4,), "dtype": "float64"}
        if group.rank == 1:
            how |= mine
        with pytest.raises(MismatchError, match=f"ranks disagree on {field}: rank 0 has"):
            symmetric.empty(group=group, **how)
        assert (symmetric.zeros(5, group=group) == 0).all()

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_too_much_is_refused_on_all_ranks(ranks):
    def body(group):
        if not has_engine(group):
            return
        for nbytes in (1 << 50, 1 << 62):
            with pytest.raises(MemoryError, match="bytes are needed on this machine"):
                symmetric.empty(nbytes, "int8", group=group)
        assert (symmetric.zeros(5, group=group) == 0).all()

    ranks(body)


# -- places --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken", "nbytes", "place"),
    [
        ([], 10, 100),
        ([], 101, None),
        ([(100, 150)], 50, 150),
        ([(100, 150)], 51, None),
        ([(120, 150), (110, 130)], 10, 100),
        ([(120, 150), (110, 130)], 11, 150),
        ([(110, 120), (100, 190)], 10, 190),
        ([(0, 300)], 1, None),
    ],
)
def test_gaps(taken, nbytes, place):
    assert find_gap(taken, nbytes, 100, 200) == place


def test_parts_side_by_side_are_gathered_where_they_lie(ranks):
    def body(group):
        if group.size > 1 and group.backend == "mpi":
            return
        whole = symmetric.concatenated(group, 24).reshape(-1).view(np.int64)
        mine = np.split(whole, group.size)[group.rank]
        for salt in range(6):
            mine[:] = 10 * group.rank + salt
            group.all_gather(mine, sizes="equal", out=whole)
            assert whole.tolist() == [10 * r + salt for r in range(group.size) for _ in range(3)]
            group.barrier()  # all have looked

    ranks(body)
