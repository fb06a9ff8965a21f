"""Symmetric arrays when ranks die, fork, are late or have no memory."""

import pytest


@pytest.mark.parametrize("count", [100, 1_000_000])
def test_who_dies_is_named_in_a_call_that_reads_where_arrays_lie(node_job, count):
    done = node_job(
        f"""
        x = hp.symmetric.zeros({count})
        if last:
            signal_me("KILL", 0.3)
        try:
            for _ in range(10**9):
                group.all_reduce(x, out=x)
        except RankFailed as error:
            say("seen", error)
        """,
        3,
    )
    seen = done.said("seen")
    assert {note.rank for note in seen} == {0, 1}, done
    assert all("rank 2 has left or died" in note.text for note in seen)
    assert max(note.at for note in seen) - done.signalled < 1.0


def test_a_rank_that_stops_is_late_and_the_group_fails(node_job):
    done = node_job(
        """
        x = hp.symmetric.zeros(1_000_000)
        group.all_reduce(x, out=x)
        if last:
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            group.all_reduce(x, out=x, timeout=0.5)
            say("done")
        except CollectiveTimeout as error:
            say("late", error)
            if group.rank == 0:
                os.kill(json.loads(pids.read_text()), signal.SIGCONT)
        except GroupFailed as error:
            say("refused", error)
        """,
        2,
        start=START,
    )
    assert [note.rank for note in done.said("late")] == [0], done
    assert "missing: [1]" in done.said("late")[0].text
    assert [note.rank for note in done.said("refused")] == [1], done


START = """
group = hp.init()
last = group.rank == group.size - 1
pids = Path(__file__).with_name("pids")
if last:
    pids.write_text(json.dumps(os.getpid()))
group.barrier()
"""


def test_a_forked_child_lets_go_of_nothing(node_job):
    done = node_job(
        """
        import gc
        x = hp.symmetric.zeros(1000)
        place = x.ctypes.data
        child = os.fork()
        if child == 0:
            del x
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        y = hp.symmetric.zeros(1000)
        say("apart" if y.ctypes.data != place else "together")
        del x, y
        gc.collect()
        group.barrier()
        say("again" if hp.symmetric.zeros(1000).ctypes.data == place else "elsewhere")
        """,
        2,
    )
    assert done.code == 0, done
    assert {note.what for note in done.notes} == {"apart", "again"}


def test_memory_that_one_rank_lacks_is_an_error_on_all(node_job):
    done = node_job(
        """
        import hpcpar.comm.window as window
        def lacks(self, at, nbytes):
            raise MemoryError("full")
        right = window.Window.reserve, window.Window.touch, window.free_memory
        def refused(make):
            try:
                make()
                say("made")
            except MemoryError as error:
                say("refused", error)
        if last:
            window.Window.reserve = lacks
        refused(lambda: hp.symmetric.zeros(1 << 16))
        window.Window.reserve = right[0]
        if last:
            window.Window.touch = lacks
        refused(lambda: hp.symmetric.concatenated(group, 1 << 16))
        window.Window.touch = right[1]
        if last:
            window.free_memory = lambda: 1 << 19
        refused(lambda: hp.symmetric.zeros(1 << 16))
        window.free_memory = right[2]
        x = hp.symmetric.zeros(1000)
        x += group.rank
        group.all_reduce(x, out=x)
        say("works" if (x == sum(range(group.size))).all() else "wrong")
        """,
        2,
    )
    assert done.code == 0, done
    assert done.said("made") == [], done
    for rank, texts in (
        (
            0,
            (
                "zeros: rank 1 has not 524288 bytes",
                "concatenated: rank 1 has not",
                "are free [rank 0",
            ),
        ),
        (1, ("full", "full", "are free [rank 1")),
    ):
        told = [note.text for note in done.said("refused") if note.rank == rank]
        assert len(told) == 3
        assert all(text in said for text, said in zip(texts, told, strict=True)), told
    assert {note.rank for note in done.said("works")} == {0, 1}
    assert done.said("wrong") == []


def test_a_signal_from_a_rank_that_died_is_not_awaited(node_job):
    done = node_job(
        """
        ready = hp.symmetric.zeros(1, "int64")
        if last:
            signal_me("KILL", 0.2)
            time.sleep(20)
        try:
            hp.symmetric.wait_signal(ready, 1)
        except RankFailed as error:
            say("seen", error)
        """,
        2,
    )
    (seen,) = done.said("seen")
    assert "rank 1 has left or died" in seen.text
    assert seen.at - done.signalled < 1.0
