"""Ranks of a real job that disagree or are late: an error on all of them, never a hang."""

import re

import pytest

START = """
import time
import numpy as np
import hpcpar as hp
group = hp.init({})
last = group.rank == group.size - 1
"""


def test_other_order_of_calls(job):
    """Each rank says which two calls met, and at which number."""
    done = job(
        """
        x, group = np.ones(4), hp.world()
        calls = [lambda: group.all_reduce(x), lambda: group.broadcast(x)]
        for call in calls if group.rank == 0 else calls[::-1]:
            try:
                call()
            except hp.errors.MismatchError as error:
                print(f"rank {group.rank}: {error}", flush=True)
        print("sum", group.all_reduce(group.rank))
        hp.shutdown()
        """,
        preamble=START.format('check="full", timeout=3.0'),
    )
    assert done.code == 0, done.err
    assert done.out.count("sum 1") == 2
    for rank in (0, 1):
        assert len(re.findall(rf"rank {rank}: .*#0 all_reduce\(.*#0 broadcast\(", done.out)) == 1
        assert len(re.findall(rf"rank {rank}: .*#1 all_reduce\(", done.out)) == 1


@pytest.mark.parametrize("check", ["full", "off"])
def test_a_skipped_call(job, check):
    done = job(
        """
        group.all_reduce(np.ones(4))
        if group.rank == 0:
            group.all_reduce(np.ones(4))
        hp.shutdown()
        """,
        preamble=START.format(f'check="{check}", timeout=3.0'),
    )
    assert done.code not in (0, None)
    assert done.seconds < 20
    assert "all_reduce #1 of group 'world'" in done.err


def test_other_arguments_of_init(job):
    done = job(
        """
        hp.init(timeout=10.0 + hp.as_group().rank)
        """,
        preamble="import hpcpar as hp, mpi4py.MPI\n",
    )
    assert done.code not in (0, None)
    assert re.search(r"init: rank 0 has .*timeout=10.0 .* rank 1 has .*timeout=11.0 ", done.err)


def test_a_failed_group_refuses_and_the_job_ends(job):
    done = job(
        """
        if not last:
            try:
                group.all_reduce(np.ones(3), timeout=0.5)
            except TimeoutError as error:
                print(error, flush=True)
            try:
                group.barrier()
            except hp.errors.GroupFailed as error:
                print(error, flush=True)
            raise SystemExit(3)
        time.sleep(2)
        group.all_reduce(np.ones(3))
        """,
    )
    assert done.code not in (0, None)
    assert done.seconds < 20
    assert "missing: [1] [rank 0/2, group 'world'" in done.out
    assert "barrier: the group is failed, because of: all_reduce: not done at the" in done.out
