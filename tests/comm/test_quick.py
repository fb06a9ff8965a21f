"""Calls seen before take the hot path where there is one; nothing may tell but the clock."""

import numpy as np
import pytest

from hpcpar.errors import ArgumentError, GroupFailed, MismatchError, UnsupportedError

SETTLED = 20  # calls after which the ranks compare no more


def check_sums(group, count=SETTLED, dtype=np.float32, op="sum"):
    for i in range(count):
        x = np.arange(5, dtype=dtype) + group.rank + i
        out = np.full_like(x, 99)
        assert group.all_reduce(x, op, out=out) is out
        total = sum(np.arange(5, dtype=dtype) + r + i for r in range(group.size))
        assert (out == (total / group.size if op == "mean" else total)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.complex64, np.float16])
def test_all_reduce_stays_right(ranks, dtype):
    ranks(lambda group: check_sums(group, dtype=dtype))


def test_mean_divides_on_every_path(ranks):
    ranks(lambda group: check_sums(group, dtype=np.float64, op="mean"))


def test_in_place_stays_right(ranks):
    def body(group):
        for _ in range(SETTLED):
            x = np.arange(4.0) + group.rank
            group.all_reduce(x, out=x)
            assert (x == group.size * np.arange(4.0) + sum(range(group.size))).all()

    ranks(body)


@pytest.mark.parametrize("sizes", ["equal", "ints"])
def test_all_gather_and_reduce_scatter_stay_right(ranks, sizes):
    def body(group):
        promised = "equal" if sizes == "equal" else (3,) * group.size
        whole, part = np.empty(3 * group.size), np.empty(3)
        for i in range(SETTLED):
            group.all_gather(np.arange(3.0) + 10 * group.rank + i, sizes=promised, out=whole)
            expected = [np.arange(3.0) + 10 * r + i for r in range(group.size)]
            assert (whole == np.concatenate(expected)).all()
            group.reduce_scatter(whole + group.rank, out=part)
            added = sum(range(group.size))
            assert (part == group.size * expected[group.rank] + added).all()

    ranks(body)


def test_other_calls_than_the_learned_one_take_the_long_way(ranks):
    def body(group):
        check_sums(group)
        strided = np.zeros(10, np.float32)[::2]
        group.all_reduce(np.ones(5, np.float32), out=strided)
        assert (strided == group.size).all()
        big = np.zeros(5, ">f4")
        group.all_reduce(np.ones(5, np.float32), out=big)
        assert (big == group.size).all()
        for bad in (np.zeros(4, np.float32), np.zeros(5), np.zeros((5, 1), np.float32)):
            with pytest.raises(ArgumentError, match="out has"):
                group.all_reduce(np.ones(5, np.float32), out=bad)
        with pytest.raises(ArgumentError, match="read-only"):
            group.all_reduce(np.ones(5, np.float32), out=np.broadcast_to(np.float32(0), (5,)))
        buffer = np.zeros(6, np.float32)
        with pytest.raises(ArgumentError, match="overlaps"):
            group.all_reduce(buffer[:5], out=buffer[1:])
        with pytest.raises(ArgumentError, match="op"):
            group.all_reduce(np.ones(5, np.float32), ["sum"], out=np.zeros(5, np.float32))
        with pytest.raises(UnsupportedError, match="band"):
            group.all_reduce(np.ones(5, np.float32), "band", out=np.zeros(5, np.float32))
        check_sums(group, 1)

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_gathers_take_the_hot_path_on_every_rank(ranks):
    def body(group):
        whole, x = np.zeros(3 * group.size), np.ones(3)
        told = (3,) * group.size
        at_root = whole if group.rank == 1 else None
        for _ in range(SETTLED):
            group.gather(x, root=1, sizes=told, out=at_root)
            group.all_gather(x, sizes=told, out=whole)
        assert group._hot(x + 1, ("gather", 1, 0, told), at_root)
        assert group._hot(x + 2, ("all_gather", 0, told), whole)
        assert (whole == 3).all()

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_an_error_that_nobody_saw_stops_the_hot_path(ranks):
    def body(group):
        check_sums(group)
        work = group.all_reduce(np.ones(1237 + group.rank), async_op=True)  # a shape not seen yet
        while not work.done():
            pass
        with pytest.raises(MismatchError, match="shape"):
            group.all_reduce(np.ones(5, np.float32), out=np.zeros(5, np.float32))
        check_sums(group, 1)

    ranks(body)


def test_a_closed_group_refuses_what_it_learned(ranks):
    def body(group):
        own = group.subgroup([group.rank])
        check_alone = np.zeros(5, np.float32)
        for _ in range(SETTLED):
            own.all_reduce(np.ones(5, np.float32), out=check_alone)
        if group.size > 1:
            own.close()
            with pytest.raises(GroupFailed, match="closed"):
                own.all_reduce(np.ones(5, np.float32), out=check_alone)

    ranks(body)


def test_every_call_is_recorded_on_both_paths(ranks):
    def body(group):
        check_sums(group)
        before = group.recorder.last(1)[0]
        check_sums(group, 3)
        after = group.recorder.last(1)[0]
        assert after[1] == before[1] + 3  # sequence numbers go on
        assert after[2:6] == before[2:6]  # the same verb, dtype, elements, itemsize
        assert after[8] >= after[7]  # ended
        assert after[10:] == before[10:]  # the same traffic

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_what_was_learned_is_forgotten_on_all_ranks_together(ranks, monkeypatch):
    """Also where some ranks took the hot path for a call, and others cannot."""
    monkeypatch.setattr("hpcpar.comm.comparison._SIGNATURES", 8)

    def body(group):
        def call():
            out = np.zeros(5) if group.rank == 0 else np.zeros(10)[::2]
            assert (group.all_reduce(np.ones(5), out=out) == group.size).all()

        for _ in range(SETTLED):
            call()
        for length in range(6, 20):
            assert (group.all_reduce(np.ones(length)) == group.size).all()
            call()

    ranks(body)


def test_broadcast_without_checks(ranks):
    """With out= on every rank nothing but the data travels, on the long way and on the hot path."""

    def body(group):
        last = group.size - 1
        for i in range(SETTLED):
            x = np.arange(6.0).reshape(2, 3) + group.rank + i
            kept, out = x.copy(), np.zeros((2, 3))
            assert group.broadcast(x, root=last, out=out) is out
            assert (out == np.arange(6.0).reshape(2, 3) + last + i).all()
            assert (x == kept).all()
            assert group.broadcast(x, root=last, out=x) is x
            assert (x == out).all()
            alone = np.full((2, 3), group.rank + i)
            group.broadcast(alone if group.rank == last else None, root=last, out=alone)
            assert (alone == last + i).all()
            strided = np.zeros((2, 6))[:, ::2]
            group.broadcast(out, root=last, out=strided)
            assert (strided == out).all()
            tree = {"a": np.full(2, group.rank), "b": np.full(3, 1.0 * group.rank)}
            group.broadcast(tree, root=last, out=tree)
            assert (tree["a"] == last).all()
            assert (tree["b"] == last).all()
        with pytest.raises(ArgumentError, match="out has"):
            group.broadcast(np.ones(2), root=last, out=np.ones(3))
        assert group.broadcast(3.5 if group.rank == last else None, root=last) == 3.5

    ranks(body, check="off")


@pytest.mark.parametrize("check", ["off", "auto"])
def test_the_hot_path_is_the_same_without_checks(ranks, check):
    def body(group):
        check_sums(group)
        whole = np.empty(2 * group.size)
        for i in range(SETTLED):
            mine = np.full(2, 1.0 * group.rank + i)
            group.all_gather(mine, sizes="equal", out=whole)
            assert (whole == np.repeat(np.arange(group.size) + i, 2)).all()
            group.all_gather(mine, sizes=[2] * group.size, out=whole)
            assert (whole == np.repeat(np.arange(group.size) + i, 2)).all()

    ranks(body, check=check)


def data(rank, i, shape=(6,)):
    return np.arange(float(np.prod(shape))).reshape(shape) + 100 * rank + i


def check_reduce(group, i, root):
    x, total = data(group.rank, i), sum(data(r, i) for r in range(group.size))
    for op, want in (("sum", total), ("mean", total / group.size)):
        for out in (np.zeros(6), x.copy()):
            at_root = group.rank == root
            given = {"out": out} if at_root else {}
            got = group.reduce(out if (out == x).all() else x, op, root=root, **given)
            assert (got is out) == at_root
            assert got is None or (got == want).all()
            assert at_root or group.reduce(x, op, root=root, out=out) is None
            if at_root:
                group.reduce(x, op, root=root)


def check_scan(group, i, root):
    for exclusive in (False, True):
        upto = range(group.rank + (not exclusive))
        want = sum((data(r, i) for r in upto), np.zeros(6))
        x, out = data(group.rank, i), np.full(6, np.nan)
        assert group.scan(x, exclusive=exclusive, out=out) is out
        assert (out == want).all()
        assert group.scan(x, exclusive=exclusive, out=x) is x
        assert (x == want).all()


def check_gather(group, i, root):
    for sizes in ("equal", (2,) * group.size):
        x, out = data(group.rank, i, (2, 3)), np.zeros((2 * group.size, 3))
        got = group.gather(x, root=root, sizes=sizes, out=out)
        assert got is (out if group.rank == root else None)
        want = np.concatenate([data(r, i, (2, 3)) for r in range(group.size)])
        assert (out == (want if group.rank == root else 0)).all()


def check_scatter(group, i, root):
    n = 2 * group.size
    whole, out = data(root, i, (n, 3)), np.zeros((2, 3))
    given = whole if group.rank == root else None
    assert group.scatter(given, root=root, out=out) is out
    assert (out == whole[2 * group.rank : 2 * group.rank + 2]).all()
    uneven = (n, *[0] * (group.size - 1))  # the last rank may get nothing
    part = np.zeros((uneven[group.rank], 3))
    group.scatter(whole, root=root, sizes=uneven if group.rank == root else None, out=part)
    assert (part == whole[: len(part)]).all()
    columns = np.zeros((n, 1))
    sizes = (1, 2) + (0,) * (group.size - 2) if group.size > 1 else (3,)
    columns = np.zeros((n, sizes[group.rank]))
    group.scatter(given, root=root, axis=1, sizes=sizes, out=columns)
    begin = sum(sizes[: group.rank])
    assert (columns == whole[:, begin : begin + sizes[group.rank]]).all()


def check_all_to_all(group, i, root):
    n = group.size
    x, want = data(group.rank, i, (2 * n, 3)), []
    for r in range(n):
        want.append(data(r, i, (2 * n, 3))[2 * group.rank : 2 * group.rank + 2])
    for sizes in ("equal", None):
        out, there = np.zeros((2 * n, 3)), x.copy()
        assert group.all_to_all(x, sizes=sizes, out=out) is out
        assert (out == np.concatenate(want)).all()
        assert group.all_to_all(there, sizes=sizes, out=there) is there
        assert (there == np.concatenate(want)).all()
    turned = np.ascontiguousarray(x.T)
    got = group.all_to_all(turned, axis=1, sizes="equal", out=np.zeros_like(turned))
    assert (np.concatenate(want) == got.T).all()


@pytest.mark.parametrize("check", ["off", "auto"])
@pytest.mark.parametrize(
    "body", [check_reduce, check_scan, check_gather, check_scatter, check_all_to_all]
)
def test_every_verb_stays_right(ranks, body, check):
    def work(group):
        for i in range(SETTLED):
            body(group, i, root=group.size - 1)

    ranks(work, check=check)


@pytest.mark.sizes(1, 2, 3)
def test_scatter_without_checks_refuses_at_once(ranks):
    """With out= given nobody waits for a word of the root; each rank looks at what it gave."""

    def body(group):
        x = np.arange(2.0 * group.size) if group.rank == 0 else None
        with pytest.raises(ArgumentError, match="read-only"):
            group.scatter(x, out=np.broadcast_to(0.0, (2,)))
        if group.rank == 0 and group.backend == "mpi":  # threads always compare, for nothing
            for bad, message in ((np.zeros(3), "shape"), (np.zeros(2, int), "dtype")):
                with pytest.raises(ArgumentError, match=message):
                    group.scatter(x, out=bad)
        assert (group.scatter(x, out=np.zeros(2)) == 2 * group.rank + np.arange(2)).all()

    ranks(body, check="off")


@pytest.mark.sizes(2, 3)
def test_all_to_all_equal_is_checked(ranks):
    def body(group):
        n = group.size
        with pytest.raises(ArgumentError, match="divide, axis 0 has"):
            group.all_to_all(np.zeros(n + 1), sizes="equal")
        with pytest.raises(ArgumentError, match="'equal', ints or a row"):
            group.all_to_all(np.zeros(n), sizes="even")
        with pytest.raises(MismatchError, match="shape"):
            group.all_to_all(np.zeros(n if group.rank else 2 * n), sizes="equal")
        with pytest.raises(MismatchError, match="sizes"):
            group.all_to_all(np.zeros(n), sizes="equal" if group.rank else None)
        with pytest.raises(ArgumentError, match="out has shape"):
            group.all_to_all(np.zeros(n), sizes="equal", out=np.zeros(n + 1))
        assert (group.all_to_all(np.arange(1.0 * n), sizes="equal") == group.rank).all()

    ranks(body)


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize("check", ["off", "auto"])
def test_empty_arrays_keep_the_ranks_in_step(ranks, check):
    """Where one rank's array may take the hot path and another's may not."""

    def body(group):
        for verb in (group.all_reduce, group.scan):
            for _ in range(SETTLED):
                x, order = np.zeros((0, 2), np.int32), "<i4" if group.rank == 0 else ">i4"
                assert verb(x, "bxor", out=np.zeros((0, 2), order)).shape == (0, 2)
        assert group.all_reduce(1) == group.size

    ranks(body, check=check)


@pytest.mark.sizes(2, 3, 4)
@pytest.mark.parametrize("async_op", [False, True])
def test_in_place_whatever_the_layout(ranks, async_op):
    """MPI wants all ranks in place, or none; Open MPI hangs else."""

    def body(group):
        n = 65538
        x = np.ones(n, np.int32) if group.rank in (0, 3) else np.ones(2 * n, np.int32)[::2]
        done = group.all_reduce(x, out=x, async_op=async_op)
        assert (done.wait() if async_op else done) is x
        assert (x == group.size).all()

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_in_place_is_compared(ranks):
    def body(group):
        x = np.ones(5)
        for verb in (group.all_reduce, group.scan):
            with pytest.raises(MismatchError, match="place: rank 0 has in, rank"):
                verb(x, out=x if group.rank == 0 else np.zeros(5))
        assert (group.all_reduce(x, out=x) == group.size).all()

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_a_root_that_scatters_something_else_is_told_by_all(ranks):
    def body(group):
        n, at_root = group.size, group.rank == 0
        x, out = np.arange(4.0 * n), np.zeros(4)
        for _ in range(3):
            group.scatter(x if at_root else None, out=out)
        for wrong in (np.arange(5.0 * n), np.arange(4 * n), np.arange(4.0 * n)[None]):
            with pytest.raises(MismatchError, match=r"scatter: out of rank 0 is .*\[rank "):
                group.scatter(wrong if at_root else None, axis=wrong.ndim - 1, out=out)
            group.scatter(x + 1 if at_root else None, out=out)
            assert out.tolist() == (np.arange(4.0) + 4 * group.rank + 1).tolist()
        sizes = [0] + [1] * (n - 2) + [4 * n - (n - 2)]
        part = np.zeros(sizes[group.rank])
        for i in range(3):
            group.scatter(x + i if at_root else None, sizes=sizes if at_root else None, out=part)
            first = sum(sizes[: group.rank])
            assert part.tolist() == (x[first : first + part.size] + i).tolist()

    ranks(body)
