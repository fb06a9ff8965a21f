"""Groups that ranks call in different orders: known at once, not at the deadline."""

import re

import pytest

START = """
import threading, time
import numpy as np
import hpcpar as hp
group = hp.init(backend="node", timeout=20.0)
me, n, x = group.rank, group.size, np.ones(3)

def meet(*calls):
    group.barrier()
    began = time.monotonic()
    try:
        for call in calls:
            call()
        print(f"rank {me}: went on")
    except hp.errors.HpcparError as error:
        took = 1000 * (time.monotonic() - began)
        print(f"rank {me}: {took:.0f} ms {type(error).__name__} {error}", flush=True)
"""


def said_by(done, rank):
    return "\n".join(re.findall(rf"^rank {rank}: .*$", done.out, re.M))


@pytest.mark.parametrize("kind", ["long way", "hot path"])
def test_two_groups_crossed(job, kind):
    """The third rank, of whom nobody knows why it waits, hears that another gave up."""
    done = job(
        f"""
        out = np.empty(3) if {kind == "hot path"} else None
        pair = group.subgroup([0, 1])
        for _ in range(3):
            group.all_reduce(x, out=out)
            pair.all_reduce(x, out=out) if me < 2 else None
        a, b = lambda: pair.all_reduce(x, out=out), lambda: group.all_reduce(x, out=out)
        meet(*{{0: (a, b), 1: (b, a), 2: (b,)}}[me])
        """,
        3,
        preamble=START,
    )
    for rank, other in ((0, 1), (1, 0)):
        text = said_by(done, rank)
        assert "CrossedGroupsError groups are called in different orders" in text, done.err
        assert re.search(rf"rank {rank} waits in #\d+ all_reduce\(.* for rank {other}", text)
        assert "of ranks [0, 1] for" in text
        assert "of ranks [0, 1, 2] for" in text
        assert int(re.search(r"(\d+) ms", text)[1]) < 2000  # some 150
    assert "GroupFailed" in said_by(done, 2)


def test_three_groups_in_a_ring(job):
    done = job(
        """
        rings = {r: group.subgroup([r, (r + 1) % n]) for r in range(n) if me in (r, (r + 1) % n)}
        group.barrier()
        meet(lambda: rings[me].all_reduce(x), lambda: rings[(me - 1) % n].all_reduce(x))
        """,
        3,
        preamble=START,
    )
    for rank in range(3):
        text = said_by(done, rank)
        assert "CrossedGroupsError" in text, done.err
        assert text.count("waits in") == 3


def test_long_waits_that_end_are_no_cycle(job):
    """Ranks that are late, and threads with groups of their own, may look like one."""
    done = job(
        """
        pair = group.subgroup([0, 1])
        other = group.subgroup(range(n)[::-1])
        time.sleep(0.3 * me)
        def own():
            time.sleep(0.5)
            other.all_reduce(x)
        if me == 0:  # its main thread waits for rank 1, which waits for its second thread
            second = threading.Thread(target=own)
            second.start()
            meet(lambda: pair.all_reduce(x))
            second.join()
        else:
            meet(lambda: other.all_reduce(x), lambda: pair.all_reduce(x) if me == 1 else None)
        hp.shutdown()
        """,
        3,
        preamble=START,
    )
    assert done.code == 0, done.err
    assert done.out.count("went on") == 3, done.out
