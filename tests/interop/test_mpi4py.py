"""The drop-in communicator gives what mpi4py's gives, through the engine where it says so."""

import array
import pickle
import time
from functools import partial

import numpy as np
import pytest

from hpcpar.errors import MismatchError

DTYPES = ["float32", "float64", "int8", "uint16", "int64", "complex64"]
LARGE = 300_000  # elements


def mpi():
    from mpi4py import MPI

    return MPI


def ours_only(comm):
    """Number of operations that went through the engine so far."""
    group = comm._group
    return 0 if group is None else group.recorder.seq(group._runner.slot)


def used(comm, call, times=1):
    """Make a call; it must go through the engine, where there is one."""
    before = ours_only(comm)
    result = call()
    if comm._group is not None:
        assert ours_only(comm) - before >= times
    return result


def unused(comm, call):
    """Make a call, which must not go through the engine."""
    before = ours_only(comm)
    result = call()
    assert ours_only(comm) == before
    return result


def numbers(comm, count, dtype="float64", salt=0):
    return ((np.arange(count) * (comm.rank + 2) + salt) % 5 + 1).astype(dtype)


def both(plain, ours, verb, make, *args):
    """Compare what a verb writes into copies of the same arrays, made by `make`."""
    results = []
    for comm in (plain, ours):
        given, taken, out = make()
        call = partial(getattr(comm, verb), given, taken, *args)
        used(ours, call) if comm is ours else call()
        results.append(out)
    assert results[0].tobytes() == results[1].tobytes(), (verb, args, results)


def test_it_is_a_communicator_of_the_same_ranks(comms):
    def body(plain, ours):
        assert isinstance(ours, mpi().Intracomm)
        assert ours == plain
        assert (ours.rank, ours.size, ours.Get_name()) == (plain.rank, plain.size, plain.Get_name())
        assert (ours._group is not None) == (plain.size > 1)  # the tests run on one machine

    comms(body)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 1000])
def test_reductions(comms, dtype, count):
    def body(plain, ours):
        MPI, n, rank = mpi(), plain.size, plain.rank
        whole = "complex" not in dtype
        bits = "int" in dtype
        ops = (
            [MPI.SUM, MPI.PROD] + [MPI.MAX, MPI.MIN] * whole + [MPI.BAND, MPI.BOR, MPI.BXOR] * bits
        )
        given = numbers(plain, count * n, dtype)

        def apart(length, got):
            out = np.full(got, 7, dtype)
            return given[:length].copy(), out, out

        def in_place(length):
            out = given[:length].copy()
            return MPI.IN_PLACE, out, out

        for op in ops:
            both(plain, ours, "Allreduce", lambda: apart(count, count), op)
            both(plain, ours, "Allreduce", lambda: in_place(count), op)
            both(plain, ours, "Scan", lambda: apart(count, count), op)
            both(plain, ours, "Scan", lambda: in_place(count), op)
            both(plain, ours, "Exscan", lambda: apart(count, count), op)
            both(plain, ours, "Reduce_scatter_block", lambda: apart(count * n, count), op)
            for root in range(n):
                both(plain, ours, "Reduce", lambda: apart(count, count), op, root)
                if rank == root:
                    both(plain, ours, "Reduce", lambda: in_place(count), op, root)
                else:
                    both(plain, ours, "Reduce", lambda: apart(count, count), op, root)
        sizes = [count + 2 * r for r in range(n)]
        long = numbers(plain, sum(sizes), dtype)
        for comm in (plain, ours):
            out = np.zeros(sizes[rank], dtype)
            comm.Reduce_scatter(long, out, sizes)
            whole_sum = sum(
                ((np.arange(sum(sizes)) * (r + 2)) % 5 + 1).astype(dtype) for r in range(n)
            ).astype(dtype)
            found = np.zeros_like(out)
            comm.Reduce_scatter(long, found)  # the counts are those of the ranks' arrays
            assert (found == out).all()
            begin = sum(sizes[:rank])
            assert (out == whole_sum[begin : begin + sizes[rank]]).all()
            if comm is ours or MPI.get_vendor()[0] != "MPICH":
                here = long.copy()
                comm.Reduce_scatter(MPI.IN_PLACE, here, sizes)
                assert (here[: sizes[rank]] == out).all()

    comms(body)


def test_ways_to_say_a_buffer(comms):
    def body(plain, ours):
        MPI, n = mpi(), plain.size
        total = n * (n + 1) / 2
        mine = float(plain.rank + 1)
        for spec in (
            np.full(3, mine),
            [np.full(3, mine), MPI.DOUBLE],
            [np.full(5, mine), 3, MPI.DOUBLE],
            [np.full(5, mine), (3, 1), MPI.DOUBLE],
            (np.full(3, mine), "d"),
            array.array("d", [mine] * 3),
            [bytes(np.full(3, mine)), MPI.DOUBLE],
            [memoryview(np.full(3, mine)), 3],
            np.full((3, 1), mine, order="F"),
            np.full((1, 3), mine)[0],
        ):
            out = np.zeros(3)
            used(ours, lambda spec=spec, out=out: ours.Allreduce(spec, out))
            assert (out == total).all()
        room = np.zeros(10)
        ours.Allreduce([np.full(10, mine), 2, 4, MPI.DOUBLE], [room, (2, 5), MPI.DOUBLE])
        assert room.tolist() == [0] * 5 + [total] * 2 + [0] * 3
        matrix = np.asfortranarray(np.arange(6.0).reshape(2, 3)) * mine
        ours.Allreduce(MPI.IN_PLACE, matrix)
        assert (matrix == np.arange(6.0).reshape(2, 3) * total).all()
        alone = np.full(2, mine)
        ours.Allreduce(None, alone)  # as mpi4py has it: in place
        assert (alone == total).all()
        ours.Allreduce(np.empty(0), np.empty(0))

    comms(body)


def test_what_only_mpi_can_do_goes_to_mpi(comms):
    def body(plain, ours):
        MPI, n, rank = mpi(), plain.size, plain.rank
        pairs = np.zeros(1, [("v", "f8"), ("i", "i4")])
        pairs["v"], pairs["i"] = -rank, rank
        found = np.zeros_like(pairs)
        if found.dtype.itemsize != MPI.DOUBLE_INT.extent:
            pairs = np.zeros(1, np.dtype([("v", "f8"), ("i", "i4")], align=True))
            pairs["v"], pairs["i"] = -rank, rank
            found = np.zeros_like(pairs)
        unused(
            ours,
            lambda: ours.Allreduce(
                [pairs, 1, MPI.DOUBLE_INT], [found, 1, MPI.DOUBLE_INT], MPI.MINLOC
            ),
        )
        assert (found["v"][0], found["i"][0]) == (1 - n, n - 1)
        op = MPI.Op.Create(
            lambda a, b, _: np.add(
                np.frombuffer(a, "f8"), np.frombuffer(b, "f8"), out=np.frombuffer(b, "f8")
            ),
            commute=True,
        )
        out = np.zeros(2)
        unused(ours, lambda: ours.Allreduce(np.full(2, 1.0 + rank), out, op))
        assert (out == n * (n + 1) / 2).all()
        op.Free()
        flag = np.array([rank == 0])
        unused(ours, lambda: ours.Allreduce(MPI.IN_PLACE, flag, MPI.LAND))
        assert flag[0] == (n == 1)
        assert unused(ours, lambda: ours.allreduce(rank)) == n * (n - 1) // 2
        assert unused(ours, lambda: ours.bcast({"a": 1} if rank == 0 else None)) == {"a": 1}
        request = unused(ours, lambda: ours.Iallreduce(MPI.IN_PLACE, out))
        request.Wait()
        around = np.zeros(1, "i")
        ours.Sendrecv(np.array([rank], "i"), (rank + 1) % n, 3, around, (rank - 1) % n, 3)
        assert around[0] == (rank - 1) % n

    comms(body)


@pytest.mark.parametrize("count", [1, 700, LARGE])
def test_moves(comms, count):
    def body(plain, ours):
        MPI, n, rank = mpi(), plain.size, plain.rank
        ranks = range(n)
        rows = np.stack([np.arange(count) + 10.0 * r for r in ranks])
        for root in ranks:
            here = rows[root].copy() if rank == root else np.zeros(count)
            used(ours, lambda here=here, root=root: ours.Bcast(here, root))
            assert (here == rows[root]).all()
            out = np.zeros((n, count)) if rank == root else None
            ours.Gather(rows[rank], out, root)
            assert rank != root or (out == rows).all()
            if rank == root:
                out = np.zeros((n, count))
                out[rank] = rows[rank]
                ours.Gather(MPI.IN_PLACE, out, root)
                assert (out == rows).all()
            else:
                ours.Gather(rows[rank], None, root)
            part = np.zeros(count)
            ours.Scatter(rows if rank == root else None, part, root)
            assert (part == rows[rank]).all()
            if rank == root:
                ours.Scatter(rows, MPI.IN_PLACE, root)
            else:
                part[:] = 0
                ours.Scatter(None, part, root)
                assert (part == rows[rank]).all()
        out = np.zeros((n, count))
        used(ours, lambda: ours.Allgather(rows[rank], out))
        assert (out == rows).all()
        out[:] = -1
        out[rank] = rows[rank]
        used(ours, lambda: ours.Allgather(MPI.IN_PLACE, out))
        assert (out == rows).all()
        swapped = np.zeros((n, count))
        ours.Alltoall(rows * (rank + 1), swapped)
        assert (swapped == [rows[rank] * (r + 1) for r in ranks]).all()
        here = rows * (rank + 1)
        ours.Alltoall(MPI.IN_PLACE, here)
        assert (here == swapped).all()
        unused(ours, ours.Barrier)

    comms(body)


@pytest.mark.sizes(2, 3)
def test_what_is_small_or_seldom_stays_with_mpi(comms):
    def body(plain, ours):
        small, middle, large = np.zeros(10), np.zeros(1000), np.zeros(10_000)
        for _ in range(5):
            unused(ours, lambda: ours.Allreduce(mpi().IN_PLACE, small))
        used(ours, lambda: ours.Allreduce(mpi().IN_PLACE, large))
        for _ in range(2):
            unused(ours, lambda: ours.Bcast(middle))
        used(ours, lambda: ours.Bcast(middle))
        unused(ours, lambda: ours.Bcast(middle, 1))  # another call
        for _ in range(2):
            unused(ours, lambda: ours.Bcast(middle[:999]))  # a third kind: the two are forgotten
        used(ours, lambda: ours.Bcast(middle[:999]))
        for _ in range(2):
            unused(ours, lambda: ours.Bcast(middle, 1))
        used(ours, lambda: ours.Bcast(middle, 1))
        for _ in range(3):
            unused(ours, lambda: ours.Bcast(small))

    comms(body, least=1000, least_moved=1000, at_once=50_000, calls=2, kinds=2)


def test_vectors_with_gaps_and_in_any_order(comms):
    def body(plain, ours):
        MPI, n, rank = mpi(), plain.size, plain.rank
        counts = [r + 1 for r in range(n)]
        mine = np.full(rank + 1, float(rank))
        joined = [float(r) for r in range(n) for _ in range(r + 1)]
        out = np.zeros(sum(counts))
        used(ours, lambda: ours.Allgatherv(mine, [out, counts]))
        assert out.tolist() == joined
        places = [2 + sum(counts[r + 1 :]) + 2 * (n - 1 - r) for r in range(n)]
        wide = np.full(sum(counts) + 2 * n, -1.0)
        used(
            ours, lambda: ours.Allgatherv([mine, MPI.DOUBLE], [wide, (counts, places), MPI.DOUBLE])
        )
        for r in range(n):
            assert (wide[places[r] : places[r] + counts[r]] == r).all()
        assert (wide == -1).sum() == 2 * n
        again = np.full_like(wide, -1)
        again[places[rank] : places[rank] + counts[rank]] = rank
        ours.Allgatherv(MPI.IN_PLACE, [again, counts, places, MPI.DOUBLE])
        assert (again == wide).all()
        got = np.zeros(sum(counts)) if rank == 0 else None
        ours.Gatherv(mine, [got, counts] if rank == 0 else None)
        assert rank or got.tolist() == joined
        ours.Scatterv([got, counts] if rank == 0 else None, mine)
        assert (mine == rank).all()
        sent = np.repeat(np.arange(float(n)), counts)
        ours.Alltoallv([sent, counts], [np.zeros(n * (rank + 1)), [rank + 1] * n])

    comms(body)


def test_a_datatype_with_gaps_on_one_rank_only(comms):
    def body(plain, ours):
        MPI, n, rank = mpi(), plain.size, plain.rank
        column = MPI.DOUBLE.Create_vector(3, 1, n)
        narrow = column.Create_resized(0, 8)
        narrow.Commit()
        table = np.arange(3.0 * n).reshape(3, n)
        mine = np.zeros(3)
        ours.Scatter([table, 1, narrow] if rank == 0 else None, mine)
        assert (mine == table[:, rank]).all()
        every = np.zeros((3, n))
        used(ours, lambda: ours.Allgather(mine, [every, 1, narrow]))
        assert (every == table).all()
        spread = np.zeros((3, n))
        spread[:, 0] = [5, 6, 7] if rank == n - 1 else 0
        used(ours, lambda: ours.Bcast([spread, 1, narrow], n - 1))
        assert spread[:, 0].tolist() == [5, 6, 7]
        assert not spread[:, 1:].any()
        narrow.Free()
        column.Free()

    comms(body)


def test_communicators_made_from_it(comms):
    def body(plain, ours):
        MPI, n, rank = mpi(), plain.size, plain.rank
        odd = ours.group.Incl([r for r in range(n) if r % 2])
        made = {
            "Dup": ours.Dup(),
            "Clone": ours.Clone(),
            "Split": ours.Split(rank % 2, -rank),
            "none": ours.Split(MPI.UNDEFINED if rank else 0),
            "Create": ours.Create(odd),
            "Create_group": ours.Create_group(odd) if rank % 2 else MPI.COMM_NULL,
            "node": ours.Split_type(MPI.COMM_TYPE_SHARED),
            "cart": ours.Create_cart([n], [True]),
            "graph": ours.Create_graph([1] * n, list(range(n))),
            "dist": ours.Create_dist_graph_adjacent([rank], [rank]),
        }
        made["Sub"] = made["cart"].Sub([True])
        made["Dup of a part"] = made["Split"].Dup()
        kinds = {"cart": MPI.Cartcomm, "Sub": MPI.Cartcomm, "graph": MPI.Graphcomm}
        kinds["dist"] = MPI.Distgraphcomm
        for name, comm in made.items():
            if comm == MPI.COMM_NULL:
                assert (name == "none" and rank) or (name.startswith("Create") and rank % 2 == 0)
                continue
            assert isinstance(comm, kinds.get(name, MPI.Intracomm)), name
            assert (comm._group is not None) == (comm.size > 1), name
            out = np.zeros(1)
            used(comm, lambda comm=comm, out=out: comm.Allreduce(np.array([float(rank)]), out))
            assert out[0] == sum(
                MPI.Group.Translate_ranks(comm.group, range(comm.size), plain.group)
            ), name
        assert made["Split"].rank == sum(r % 2 == rank % 2 for r in range(rank + 1, n))
        # Two with the same ranks are two groups: their calls do not meet.
        one, other = made["Dup"], made["Clone"]
        assert n == 1 or one._group is not other._group
        for comm in reversed(made.values()):
            if comm != MPI.COMM_NULL:
                comm.Free()
                assert comm == MPI.COMM_NULL
                assert comm._group is None
        assert ours.allreduce(1) == n
        for _ in range(50):  # groups are given back
            again = ours.Dup()
            again.Bcast(np.zeros(1))
            again.Free()

    comms(body)


@pytest.mark.sizes(2, 3)
def test_messages_move_on_while_a_rank_waits_in_a_collective(comms):
    """Who sends may wait in MPI for the receiver's part, and come to the collective only then."""

    def body(plain, ours):
        rank, big = plain.rank, np.ones(4_000_000)
        if rank == 0:
            ours.Send(big, 1, 7)
        elif rank == 1:
            big[:] = 0
            request = ours.Irecv(big, 0, 7)
        total = np.zeros(1)
        ours.Allreduce(np.ones(1), total)
        if rank == 1:
            request.Wait()
        assert big.all()

    comms(body)


@pytest.mark.sizes(2, 3)
def test_ranks_that_disagree_are_told(comms):
    def body(plain, ours):
        with pytest.raises(MismatchError, match="shape"):
            ours.Allreduce(np.ones(2 + plain.rank), np.ones(2 + plain.rank))
        with pytest.raises(MismatchError):
            ours.Bcast(np.ones(1)) if plain.rank else ours.Allgather(
                np.ones(1), np.ones(plain.size)
            )
        out = np.zeros(1)
        ours.Allreduce(np.ones(1), out)
        assert out[0] == plain.size

    comms(body)


def test_what_mpi_refuses_is_refused(comms):
    def body(plain, ours):
        MPI, n = mpi(), plain.size
        for root in (-1, n):
            with pytest.raises(MPI.Exception):
                ours.Bcast(np.zeros(1), root)
            with pytest.raises(MPI.Exception):
                ours.Reduce(np.zeros(1), np.zeros(1), MPI.SUM, root)
        with pytest.raises((ValueError, BufferError)):
            ours.Allreduce(np.zeros(8)[::2], np.zeros(4))
        with pytest.raises((ValueError, BufferError, KeyError, MPI.Exception)):
            ours.Allreduce(np.array(["a"]), np.array(["b"]))
        with pytest.raises((ValueError, BufferError, KeyError)):
            ours.Bcast(np.array([object()]))
        with pytest.raises(TypeError):
            ours.Allreduce(3.0, np.zeros(1))
        with pytest.raises(ValueError):  # noqa: PT011  mpi4py's words
            ours.Allgather(np.zeros(2), [np.zeros(1), 2, 3, 4, 5])
        with pytest.raises((ValueError, pickle.PicklingError)):
            pickle.dumps(ours)
        used(ours, lambda: ours.Bcast(np.zeros(1)))

    comms(body)


def test_a_second_one_on_the_same_communicator_shares_its_group(comms):
    def body(plain, ours):
        again = type(ours)(ours)
        assert again == ours
        assert again._group is ours._group
        assert type(ours)() == mpi().COMM_NULL
        assert type(ours)(mpi().COMM_NULL) == mpi().COMM_NULL

    comms(body)


@pytest.mark.sizes(2)
def test_waiting_takes_no_core(comms):
    def body(plain, ours):
        plain.Barrier()
        begin = time.process_time()
        if plain.rank == 0:
            time.sleep(0.5)
        ours.Bcast(np.zeros(1))
        assert time.process_time() - begin < 0.2

    comms(body)


def described(case, values):
    """Return a specification of some numbers in a form that few use."""
    MPI, count = mpi(), len(values)
    if case == "bottom":
        kind = MPI.Datatype.Create_struct([count], [MPI.Get_address(values)], [MPI.DOUBLE])
        return [MPI.BOTTOM, 1, kind.Commit()]
    if case == "backwards":
        kind = MPI.DOUBLE.Create_vector(count, 1, -1).Commit()
        values[:] = values[::-1].copy()
        return [values.view(np.uint8)[8 * (count - 1) :], 1, kind]
    if case in ("no extent", "negative extent"):
        extent = 0 if case == "no extent" else -8
        kind = MPI.DOUBLE.Create_contiguous(count).Create_resized(0, extent).Commit()
        return [values, 1, kind]
    if case == "duplicate":
        return [values, MPI.DOUBLE.Dup()]
    columns = np.asfortranarray(values.reshape(-1, 10))
    columns.reshape(-1, order="F")[:] = values
    if case == "columns":
        return memoryview(columns)
    assert case == "matrix"
    return columns.view(np.matrix)


FORMS = ("bottom", "backwards", "no extent", "negative extent", "duplicate", "columns", "matrix")


@pytest.mark.parametrize("case", FORMS)
def test_ranks_may_describe_the_same_data_differently(comms, case):
    def body(plain, ours):
        want = np.arange(1000.0)
        for root in range(plain.size):
            mine = want.copy() if plain.rank == root else np.zeros(1000)
            spec = described(case, mine) if plain.rank == 0 else mine
            used(ours, partial(ours.Bcast, spec, root))
            if plain.rank and plain.rank != root:
                assert (mine == want).all()
        # What MPI reduces; alone it does so itself, and mpi4py refuses types that differ.
        if plain.size > 1 and case in ("duplicate", "columns", "matrix"):
            mine = want + plain.rank
            spec = described(case, mine) if plain.rank == 0 else mine
            out = np.zeros(1000)
            used(ours, lambda: ours.Allreduce(spec, out))
            assert (out == want * plain.size + sum(range(plain.size))).all()

    comms(body)


def test_an_operation_may_come_by_its_handle(comms):
    def body(plain, ours):
        MPI = mpi()
        op = MPI.Op.fromhandle(MPI.SUM.handle) if plain.rank == 0 else MPI.SUM
        out = np.zeros(10)
        used(ours, lambda: ours.Allreduce(np.ones(10), out, op))
        assert (out == plain.size).all()

    comms(body)


def test_what_mpi_refuses_is_refused_at_any_length(comms):
    """Also where the engine could do it: a program must not depend on the length."""

    def body(plain, ours):
        from hpcpar.interop.messages import numbers_of

        MPI = mpi()
        wrong = [np.zeros(100, ">f8"), np.zeros(100, "M8[s]"), [np.zeros(100), 100, 5]]
        for spec in wrong:
            for comm in (plain, ours):
                with pytest.raises((BufferError, ValueError, TypeError, KeyError)):
                    comm.Bcast(spec)
        for spec in (np.ones(100, bool), [np.ones(100, np.uint8), MPI.BYTE]):
            assert ours._reduces(numbers_of(spec), MPI.SUM, "Allreduce") is None

    comms(body)


def test_wrappers_of_one_communicator_count_together(comms):
    def body(plain, ours):
        other, x = type(ours)(ours), np.ones(1000)
        for number in range(4):
            comm = other if plain.rank == 0 and number % 2 else ours
            comm.Allreduce(mpi().IN_PLACE, x)
        assert (x == plain.size**4).all()

    comms(body, least=1, least_moved=1, at_once=50_000, calls=2, kinds=2)


def test_disconnect_lets_the_group_go(comms):
    def body(plain, ours):
        names = ours._attached._family.names if ours._attached else set()
        before = len(names)
        for _ in range(3):
            made = ours.Dup()
            made.Disconnect()
            assert made._group is None
        assert len(names) == before

    comms(body)


def test_empty_vectors_without_buffers(comms):
    def body(plain, ours):
        for comm in (plain, ours):
            comm.Allgatherv([None, 0, mpi().INT], [None, (0, None), mpi().INT])
            comm.Allgatherv([None, mpi().INT], [None, ([0] * plain.size, None), mpi().INT])

    comms(body)
