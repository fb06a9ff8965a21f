"""One rank fails or leaves: the job ends soon, with one report and the right exit code."""

import re
import subprocess
import sys

import pytest

SOON = 10.0


def report(result):
    """The lines that a rank printed about the end of the job."""
    return re.findall(r"^\[rank \d+/\d+\] .*", result.err, re.MULTILINE)


def ended(result, code):
    # Hydra joins the bits of the ranks' codes, and those that it had to kill have 9.
    assert result.code == code or (code and result.code == code | 9), result.err
    assert result.seconds < SOON
    return True


def test_an_uncaught_exception_ends_the_job_with_its_traceback(job):
    result = job("""
        if last:
            print("before")
            raise ValueError("boom")
        group.barrier()
    """)
    assert ended(result, 1)
    assert "before\n" in result.out
    lines = report(result)
    assert lines[0] == "[rank 1/2] Traceback (most recent call last):"
    assert lines[-1] == "[rank 1/2] ValueError: boom"
    assert not re.search("^Traceback", result.err, re.MULTILINE)


def test_finally_shutdown_does_not_hide_the_exception(job):
    result = job("""
        try:
            if last:
                raise ValueError("boom")
            group.barrier()
        finally:
            hp.shutdown()
    """)
    assert ended(result, 1)
    assert report(result)[-1] == "[rank 1/2] ValueError: boom"


def test_ranks_that_fail_together_make_one_report(job):
    result = job(
        """
        group.barrier()
        raise ValueError(f"boom {group.rank}")
        """,
        3,
    )
    assert ended(result, 1)
    lines = report(result)
    assert lines[-2:-1] == ["[rank 0/3] ValueError: boom 0"], result.err
    others = "rank 1 (ValueError: boom 1), rank 2 (ValueError: boom 2)"
    assert lines[-1] == f"[rank 0/3] failed too: {others}"
    assert result.err.count("Traceback") == 1


def test_a_mismatch_on_all_ranks_is_reported_once(job):
    result = job("group.all_reduce(np.ones(2 + group.rank))")
    assert ended(result, 1)
    assert result.err.count("Traceback") == 1
    assert any("MismatchError" in line for line in report(result))


def test_the_root_cause_speaks_not_its_consequence(job):
    result = job("""
        if not last:
            raise hp.errors.RankFailed("the other one is gone")
        time.sleep(0.3)
        raise ValueError("root cause")
    """)
    assert ended(result, 1)
    lines = report(result)
    assert lines[-1] == "[rank 1/2] ValueError: root cause"
    assert "gone" not in "".join(lines)


@pytest.mark.parametrize(
    ("leave", "code", "message"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit('bad things')", 1, "bad things\n"),
    ],
)
def test_an_exit_code_on_one_rank_ends_the_job(job, leave, code, message):
    result = job(f"""
        if last:
            {leave}
        group.barrier()
    """)
    assert ended(result, code)
    assert message in result.err
    line = f"left with exit code {code} while other ranks were still at work; the job ends."
    assert report(result) == [f"[rank 1/2] {line}"]


def test_a_refusal_on_all_ranks_is_clean(job):
    result = job(
        """
        time.sleep(0.2 * group.rank)
        print("usage", group.rank, file=sys.stderr)
        sys.exit(2)
        """,
        3,
    )
    assert ended(result, 2)
    assert report(result) == []
    assert sorted(re.findall(r"usage \d", result.err)) == ["usage 0", "usage 1", "usage 2"]
    assert "bort" not in result.err.replace("Abort is in progress", "")


def test_a_rank_that_is_done_waits_for_others_without_spinning(job):
    result = job("""
        import threading
        def measure():
            before = time.process_time()
            time.sleep(1.5)
            print("cpu", time.process_time() - before, flush=True)
        if last:
            time.sleep(2.5)
        else:
            threading.Thread(target=measure, daemon=True).start()
    """)
    assert ended(result, 0)
    assert result.seconds > 2.5
    assert report(result) == []
    assert float(re.search(r"cpu (\S+)", result.out)[1]) < 0.3


def test_a_rank_that_waits_for_one_that_left_ends_the_job(job):
    result = job("""
        group.all_reduce(np.ones(4))
        if last:
            sys.exit(0)
        group.all_reduce(np.ones(4))
    """)
    assert ended(result, 1)
    lines = report(result)
    assert re.match(
        r"\[rank 0/2\] RankFailed: all_reduce #1 of group 'world': rank 1 \(exit code 0\) has left",
        lines[0],
    )
    assert "rank 1 last: world #0 all_reduce" in lines[1]
    assert "last operations" in lines[2]
    assert "all_reduce" in lines[-1]
    assert "not done" in lines[-1]


def test_a_rank_that_did_its_part_may_leave(job):
    result = job(
        """
        if group.rank == 1:
            time.sleep(2.0)
        total = group.reduce(np.full(3, group.rank + 1.0), root=0)
        if group.rank == 0:
            print(total, flush=True)
        """,
        3,
    )
    assert ended(result, 0)
    assert result.out == "[6. 6. 6.]\n"
    assert result.err == ""


def test_an_exit_that_was_caught_is_forgotten(job):
    result = job("""
        if last:
            try:
                sys.exit(3)
            except SystemExit:
                pass
        group.barrier()
    """)
    assert ended(result, 0)
    assert result.err == ""


def test_an_interrupt_is_one_line_and_exit_code_130(job):
    result = job("""
        if last:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        group.barrier()
    """)
    assert ended(result, 130)
    assert report(result) == ["[rank 1/2] interrupted (Ctrl-C)"]
    assert "Traceback" not in result.err


@pytest.mark.parametrize("leave", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(86)"])
def test_what_no_hook_sees_is_the_launchers(job, leave):
    result = job(f"""
        group.all_reduce(np.ones(4))
        if last:
            {leave}
        group.subgroup(range(group.size)).all_reduce(np.ones(4))
    """)
    assert result.code not in (0, None)
    assert result.seconds < 15


def test_a_late_rank_is_named_at_the_deadline(job):
    result = job("""
        if last:
            time.sleep(6)
        began = time.monotonic()
        try:
            group.barrier(timeout=2)
        except TimeoutError as error:
            print(error, 2 <= time.monotonic() - began < 4, flush=True)
            os._exit(0 if "missing: [1]" in str(error) else 1)
    """)
    assert "missing: [1]" in result.out
    assert "True" in result.out
    assert result.seconds < 15


def test_the_watchdog_ends_the_job_at_the_groups_deadline(job):
    body = """
        import hpcpar as hp
        group = hp.init(backend="mpi", timeout=1.0, check="off")
        import time
        if group.rank == 1:
            time.sleep(20)
        group.barrier()
    """
    result = job(body, preamble="")
    assert ended(result, 1)
    assert any("CollectiveTimeout" in line and "barrier" in line for line in report(result))


def test_objects_that_outlive_mpi_are_harmless(job):
    result = job("""
        sub = group.subgroup(range(group.size))
        handle = group.all_reduce(np.ones(4), async_op=True)
        handle.wait()
        from mpi4py import MPI
        MPI.Finalize()
    """)
    assert ended(result, 0)
    assert result.err == ""


def test_the_hooks_are_silent_after_mpi_was_finalized(job):
    result = job("""
        from mpi4py import MPI
        group.barrier()
        MPI.Finalize()
        if last:
            raise ValueError("boom")
    """)
    assert result.code not in (0, None)
    assert "Traceback" in result.err
    assert report(result) == []


def test_mpi_that_the_user_started_outlives_shutdown(job):
    result = job(
        """
        from mpi4py import MPI
        import hpcpar as hp
        hp.init().barrier()
        hp.shutdown()
        hp.shutdown()
        MPI.COMM_WORLD.Barrier()
        hp.init().barrier()
        hp.shutdown()
        MPI.COMM_WORLD.Barrier()
        assert not MPI.Is_finalized()
        """,
        preamble="",
    )
    assert ended(result, 0)
    assert result.err == ""


def test_a_forked_child_runs_no_hook(job):
    result = job("""
        import multiprocessing, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        def child():
            try:
                raise ValueError("child")
            except ValueError:
                sys.excepthook(*sys.exc_info())
            sys.exit(5)
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 5
        group.barrier()
    """)
    assert ended(result, 0)
    assert "ValueError: child" in result.err
    assert report(result) == []


def test_importing_in_a_child_process_of_a_rank_starts_no_mpi(job):
    result = job("""
        import subprocess
        if not last:
            body = "import hpcpar; print(1)"
            done = subprocess.run([sys.executable, "-c", body], timeout=10, capture_output=True)
            print(done.returncode, done.stdout.split(), flush=True)
        group.barrier()
    """)
    assert ended(result, 0)
    assert result.out == "0 [b'1']\n"


def test_plain_python_is_a_world_of_one_without_mpi(tmp_path):
    body = (
        "import sys, numpy as np, hpcpar as hp; hp.init();"
        "print(hp.rank(), hp.size(), hp.all_reduce(np.arange(3)));"
        "print([name for name in sys.modules if name.startswith('mpi4py')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", body], timeout=30, capture_output=True, text=True, check=True
    )
    assert done.stdout == "0 1 [0 1 2]\n[]\n"
    assert done.stderr == ""


def test_an_asynchronous_call_has_its_own_deadline_beside_the_groups(job):
    result = job(
        """
        import time, hpcpar as hp
        group = hp.init(timeout=1.0)
        if group.rank == 1:
            time.sleep(3)
        print(group.all_reduce(1, async_op=True, timeout=20).wait(), flush=True)
        with group.without_deadline():
            work = group.all_reduce(1, async_op=True) if group.rank == 0 else None
        if work is None:
            time.sleep(3)
            work = group.all_reduce(1, async_op=True)
        work.wait()
        """,
        preamble="",
    )
    assert ended(result, 0)
    assert re.findall(r"\d", result.out) == ["2", "2"]


def test_more_ranks_than_cores_work_and_wait_cheaply(job):
    result = job(
        """
        began = time.monotonic()
        for _ in range(500):
            group.all_reduce(np.ones(4, np.float32))
        for _ in range(50):
            group.barrier()
        assert time.monotonic() - began < 10
        before = time.process_time()
        if group.rank == 0:
            time.sleep(2)
        group.barrier(timeout=20)
        print(f"cpu {time.process_time() - before:.2f}", flush=True)
        """,
        4,
    )
    assert result.code == 0, result.err
    assert len(used := [float(cpu) for cpu in re.findall(r"cpu (\d+\.\d+)", result.out)]) == 4
    assert max(used) < 1.0
