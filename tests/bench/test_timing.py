"""The loop that times: who is called how often, in which order, and what is reported."""

import numpy as np
import pytest

from hpcpar.bench.buffers import PAGE, TARGET, placed
from hpcpar.bench.timing import Times, compare, time_all


def test_contestants_take_turns_and_every_turn_begins_together(ranks):
    def body(group):
        calls = []

        def barrier():
            calls.append("|")

        contestants = {name: (lambda name=name: calls.append(name)) for name in "abc"}
        times = time_all(group, contestants, barrier=barrier, rounds=4, warmup=2, seconds=1e-5)
        text = "".join(calls)
        turns = [part for part in text.split("|") if part][-24:]
        assert [turn[0] for turn in turns] == [*"aabbcc", *"bbccaa", *"ccaabb", *"aabbcc"]
        for name, found in times.items():
            assert len(found.rounds) == 4
            assert found.calls == len(next(t for t in turns if t[0] == name))
            assert 0 < found.best <= found.median <= max(found.rounds)
            assert found.p99 > 0
        return times

    ranks(body)


def test_all_ranks_get_the_slowest_rank(ranks):
    def body(group):
        times = time_all(
            group,
            {"a": lambda: sum(range(50 * group.rank))},
            barrier=group.barrier,
            rounds=3,
            warmup=1,
            seconds=1e-4,
        )
        everyone = group.all_gather_object([*times["a"].rounds, times["a"].p99, times["a"].calls])
        assert all(other == everyone[0] for other in everyone)

    ranks(body)


def test_rounds_are_compared_in_pairs():
    ours = Times(1, (1.0, 10.0, 2.0), 10.0)
    peer = Times(1, (2.0, 40.0, 6.0), 40.0)
    # The ratio of the medians would be 3 as well, but not the median of differences.
    assert compare(ours, peer) == (3.0, -4.0)
    assert (ours.best, ours.median) == (1.0, 2.0)


@pytest.mark.parametrize("start", [0, TARGET, 64])
def test_arrays_lie_where_they_should(start):
    for count, dtype in [(1, np.float64), (5000, np.uint8), (0, np.float32)]:
        made = placed(count, np.dtype(dtype), start)
        assert made.shape == (count,)
        assert made.dtype == dtype
        assert not made.any()
        assert count == 0 or made.__array_interface__["data"][0] % PAGE == start
