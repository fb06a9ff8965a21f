"""Late ranks: who is missing is named at the deadline, and the group is failed afterwards."""

import time

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.comm.settings import Settings
from hpcpar.comm.world import _with_timeout
from hpcpar.errors import ArgumentError, CollectiveTimeout, GroupFailed, LaunchError, RankFailed

# On MPI these leave calls open that never end; tests/faults has them as jobs of their own.
pytestmark = pytest.mark.threads_only


@pytest.mark.parametrize("how", ["call", "default", "asynchronous"])
@pytest.mark.sizes(2, 4)
def test_the_missing_are_named(ranks, how):
    timeout = None if how == "default" else 0.3

    def call(group, timeout):
        work = group.all_reduce(np.ones(3), timeout=timeout, async_op=how == "asynchronous")
        return work.wait() if how == "asynchronous" else work

    def body(group):
        late = group.size - 1
        if group.rank == late:
            time.sleep(0.6)
            with pytest.raises(GroupFailed, match=r"rank \d has given up waiting here \[rank "):
                call(group, None)
            return
        began = time.monotonic()
        with pytest.raises(CollectiveTimeout, match=rf"missing: \[{late}\] \[rank ") as caught:
            call(group, timeout)
        assert 0.3 <= time.monotonic() - began < 3
        assert isinstance(caught.value, TimeoutError)
        assert "all_reduce float64[3] 0.0 KiB" in "".join(caught.value.__notes__)
        assert group.state == "failed"
        with pytest.raises(GroupFailed, match=r"barrier: the group is failed.*missing") as after:
            group.barrier()
        assert after.value.__cause__ is caught.value

    ranks(body, timeout=0.3 if how == "default" else 60.0)


@pytest.mark.sizes(2)
def test_other_groups_go_on(ranks):
    def body(group):
        pair = group.subgroup([1, 0])
        if group.rank == 0:
            with pytest.raises(CollectiveTimeout):
                group.barrier(timeout=0.1)
        assert pair.all_reduce(1) == 2
        assert pair.state == "ok"

    ranks(body)


@pytest.mark.sizes(3)
def test_a_rank_that_left_is_no_late_rank(ranks):
    """It is known at once, whatever the deadline."""

    def body(group):
        if group.rank == 2:
            return
        began = time.monotonic()
        with pytest.raises(RankFailed, match="rank 2 has left and is missing here"):
            group.all_gather(np.ones(3), timeout=60)
        assert time.monotonic() - began < 5

    ranks(body)


@pytest.mark.sizes(2)
def test_a_skipped_call_is_seen_at_the_end(ranks):
    def body(group):
        group.all_reduce(np.ones(4))
        if group.rank == 0:
            with pytest.raises(RankFailed, match=r"rank 1 has left .*#1\]") as caught:
                group.all_reduce(np.ones(4), timeout=30)
            assert "#0 all_reduce float64[4]" in "".join(caught.value.__notes__)

    ranks(body)


@pytest.mark.sizes(2)
def test_a_deadline_may_be_suspended(ranks):
    def body(group):
        if group.rank == 1:
            time.sleep(0.5)
        with group.without_deadline():
            assert group.is_patient
            group.barrier()
        assert group.all_reduce(1, timeout=float("inf")) == 2

    ranks(body, timeout=0.2)


@pytest.mark.parametrize("timeout", [0, -3, "1", True, float("nan")])
def test_the_default_is_checked(timeout):
    with pytest.raises(ArgumentError, match="init: timeout"):
        hp.init(timeout=timeout)


@pytest.mark.parametrize(
    ("text", "default", "timeout"),
    [("", 1800.0, 1800.0), ("90", 1800.0, 90.0), ("none", 1800.0, None), ("90", 5.0, 5.0)],
)
def test_the_environment_replaces_the_default(text, default, timeout):
    assert _with_timeout(Settings(timeout=default), text).timeout == timeout


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan"])
def test_a_wrong_variable_is_named(text):
    with pytest.raises(LaunchError, match=f"HPCPAR_TIMEOUT='{text}' must be seconds above 0"):
        _with_timeout(Settings(), text)


@pytest.mark.parametrize("how", ["blocking", "asynchronous"])
@pytest.mark.sizes(2, 3)
def test_who_cannot_go_on_in_the_middle_tells_the_others(ranks, how):
    """As where memory for the chunks of one rank is missing: the others have agreed already."""

    def body(group):
        fails = group.rank == group.size - 1
        backend = group._runner.backend
        start = backend.start

        def start_or_fail(op):
            if op.verb != "exchange":
                raise MemoryError("no memory for the chunks")
            start(op)

        if fails:
            backend.start = start_or_fail
        with pytest.raises(MemoryError if fails else (GroupFailed, RankFailed)):
            work = group.all_reduce(np.ones(3), async_op=how == "asynchronous")
            if how == "asynchronous":
                work.wait()
        assert group.state == ("failed" if fails else group.state)

    ranks(body, timeout=60.0)
