"""Weighted means over steps and ranks."""

import math

import numpy as np
import pytest

from hpcpar.errors import ArgumentError
from hpcpar.metrics import Means


def test_means_are_over_all_samples(ranks):
    def body(group):
        means = Means(group)
        for step in range(3):
            count = group.rank + step
            value = np.float32(10.0 * step + group.rank)
            means.update({"loss": value if count else math.nan}, weight=count)
        pairs = [(10.0 * s + r, r + s) for r in range(group.size) for s in range(3)]
        wanted = sum(v * w for v, w in pairs) / sum(w for _, w in pairs)
        assert means.compute() == {"loss": pytest.approx(wanted, rel=1e-15)}
        assert means.compute() == means.compute()
        means.reset()
        assert means.compute() == {}

    ranks(body)


def test_names_may_come_on_some_ranks_only(ranks):
    def body(group):
        means = Means(group)
        if group.rank == 0:
            means.update({"grad norm": np.array([3.0])})
        means.update({"empty": 1.0}, weight=0)
        found = means.compute()
        assert found["grad norm"] == 3.0
        assert math.isnan(found["empty"])

    ranks(body)


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf])
def test_refuses_bad_numbers(ranks, weight):
    def body(group):
        means = Means(group)
        with pytest.raises(ArgumentError, match="must be a finite number >= 0"):
            means.update({"a": 1.0}, weight=weight)
        with pytest.raises(ArgumentError, match="'b' is an array of several numbers"):
            means.update({"a": 1.0, "b": np.ones(2)})
        assert means.compute() == {}

    ranks(body)
