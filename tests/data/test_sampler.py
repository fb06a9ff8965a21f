"""The sampler: a permutation per epoch, cut over ranks without padding, resumable anywhere."""

import doctest
import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar import data as module
from hpcpar.data import Sampler
from hpcpar.errors import ArgumentError


def epoch_of(sampler, epoch):
    first = epoch * sampler.steps_per_epoch
    return np.concatenate([sampler.batch(first + i) for i in range(sampler.steps_per_epoch)])


@settings(derandomize=True, database=None, deadline=None, max_examples=50)
@given(st.integers(1, 500), st.integers(5, 200), st.integers(0, 2**40), st.integers(0, 5))
def test_an_epoch_visits_every_sample_once(num_samples, batch_size, seed, epoch):
    sampler = Sampler(num_samples, batch_size, seed=seed)
    assert np.array_equal(np.sort(epoch_of(sampler, epoch)), np.arange(num_samples))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_the_ranks_together_read_the_batch_in_order_without_padding(size):
    sampler = Sampler(23, 10, seed=5)
    for step in range(7):
        parts = [sampler.local(step, rank, size) for rank in range(size)]
        assert np.array_equal(np.concatenate(parts), sampler.batch(step))
    assert [len(sampler.local(2, rank, 4)) for rank in range(4)] == [1, 1, 1, 0]


def test_order_depends_on_seed_and_epoch_only():
    one, two, other = Sampler(100, 10, seed=1), Sampler(100, 10, seed=1), Sampler(100, 10, seed=2)
    assert np.array_equal(epoch_of(one, 0), epoch_of(two, 0))
    assert not np.array_equal(epoch_of(one, 0), epoch_of(other, 0))
    assert not np.array_equal(epoch_of(one, 0), epoch_of(one, 1))
    assert not np.array_equal(epoch_of(one, 0), np.arange(100))


def test_the_order_stays_the_same_in_later_versions():
    sampler = Sampler(10, 10, seed=1)
    assert sampler.batch(0).tolist() == [7, 4, 1, 6, 3, 9, 8, 2, 5, 0]
    assert sampler.batch(1).tolist() == [6, 2, 3, 1, 8, 9, 5, 0, 7, 4]


def test_every_sample_is_as_likely_in_every_place():
    counts, sampler = np.zeros((6, 6), int), Sampler(6, 6, seed=3)
    for epoch in range(600):
        counts[np.arange(6), sampler.batch(epoch)] += 1
    chi2 = ((counts - 100) ** 2 / 100).sum()
    assert chi2 < 60  # 25 degrees of freedom: 60 has p = 1e-4


def test_neighbours_are_not_correlated():
    order = epoch_of(Sampler(4096, 4096, seed=9), 0)
    assert abs(np.corrcoef(np.arange(4096), order)[0, 1]) < 0.06
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.06


def test_no_array_of_all_samples_is_made():
    sampler = Sampler(10**15, 8, seed=4)
    tracemalloc.start()
    batch = sampler.batch(10**9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000
    assert len(set(batch.tolist())) == 8
    assert 0 <= batch.min() <= batch.max() < 10**15


@pytest.mark.parametrize(("before", "after"), list(itertools.product([1, 2, 3], [1, 2, 4])))
def test_resumes_in_mid_epoch_on_another_world_size(before, after):
    def run(sampler, size, steps):
        at = [sampler.step + step for step in range(steps)]
        sampler.step += steps
        return [np.concatenate([sampler.local(s, r, size) for r in range(size)]) for s in at]

    straight = run(Sampler(17, 5, seed=2), 1, 9)
    first = Sampler(17, 5, seed=2)
    seen = run(first, before, 6)  # the second epoch is half done
    again = Sampler(17, 5, seed=2)
    again.load_state_dict(first.state_dict())
    assert (again.step, again.epoch) == (6, 1)
    seen += run(again, after, 3)
    assert [batch.tolist() for batch in seen] == [batch.tolist() for batch in straight]


def test_take_moves_on():
    sampler = Sampler(5, 2, shuffle=False)
    assert [sampler.take(0, 1).tolist() for _ in range(4)] == [[0, 1], [2, 3], [4], [0, 1]]


def test_refuses_a_state_of_another_order():
    state = Sampler(17, 5, seed=2).state_dict()
    with pytest.raises(ArgumentError, match="seed 2 must be 3"):
        Sampler(17, 5, seed=3).load_state_dict(state)
    with pytest.raises(ArgumentError, match="batch_size 5 must be 4"):
        Sampler(17, 4, seed=2).load_state_dict(state)


def test_refuses_bad_sizes():
    with pytest.raises(ArgumentError, match="num_samples 0 must be at least 1"):
        Sampler(0, 1)
    with pytest.raises(ArgumentError, match="batch_size -3 must be at least 1"):
        Sampler(1, -3)
    with pytest.raises(ArgumentError, match=r"rank 2 must be in 0..1"):
        Sampler(4, 2).local(0, 2, 2)
    with pytest.raises(ArgumentError, match="step -1 must not be negative"):
        Sampler(4, 2).batch(-1)


def test_examples():
    assert doctest.testmod(module).failed == 0
