"""Bandwidth factors, sizes and statistics against values worked out by hand."""

import numpy as np
import pytest

from hpcpar.bench.formulas import (
    BUS_FACTORS,
    algbw,
    busbw,
    median,
    parse_bytes,
    quantile,
    size_steps,
)
from hpcpar.errors import ArgumentError

# busbw / algbw for 1, 2, 3, 4 and 8 ranks
GOLDEN = {
    "all_reduce": (0, 1, 4 / 3, 1.5, 1.75),
    "reduce_scatter": (0, 0.5, 2 / 3, 0.75, 0.875),
    "all_gather": (0, 0.5, 2 / 3, 0.75, 0.875),
    "all_to_all": (0, 0.5, 2 / 3, 0.75, 0.875),
    "gather": (0, 0.5, 2 / 3, 0.75, 0.875),
    "scatter": (0, 0.5, 2 / 3, 0.75, 0.875),
    "broadcast": (1, 1, 1, 1, 1),
    "reduce": (1, 1, 1, 1, 1),
    "scan": (1, 1, 1, 1, 1),
    "sendrecv": (1, 1, 1, 1, 1),
    "send": (1, 2, 3, 4, 8),
}


def test_the_table_has_every_verb():
    assert GOLDEN.keys() == BUS_FACTORS.keys()


@pytest.mark.parametrize("verb", GOLDEN)
def test_busbw(verb):
    found = [busbw(verb, ranks, 3 * 10**9, 1.5) for ranks in (1, 2, 3, 4, 8)]
    assert found == pytest.approx([2 * factor for factor in GOLDEN[verb]], rel=1e-15)


def test_bandwidths_are_in_decimal_gigabytes():
    assert algbw(25 * 2**20, 0.004) == pytest.approx(6.5536)
    assert busbw("all_reduce", 4, 25 * 2**20, 0.004) == pytest.approx(9.8304)


@pytest.mark.parametrize("values", [[3.0], [2.0, 1.0], [5.0, 1.0, 4.0], list(range(100, 0, -1))])
@pytest.mark.parametrize("q", [0, 0.25, 0.5, 0.99, 1])
def test_quantile_is_numpys(values, q):
    assert quantile(values, q) == pytest.approx(float(np.quantile(values, q)), rel=1e-15)
    assert median(values) == float(np.median(values))


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4", 4), ("64K", 65536), ("25M", 26214400), ("1g", 2**30), ("2MiB", 2**21), ("3kb", 3072)],
)
def test_sizes_are_read(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "K", "-4", "1.5M", "4X", "1KK"])
def test_other_text_is_no_size(text):
    with pytest.raises(ArgumentError, match="is no size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ((4, 64, 4), (4, 16, 64)),
        ((4, 65, 4), (4, 16, 64, 65)),
        ((8, 8, 2), (8,)),
        ((1, 3, 2), (1, 2, 3)),
    ],
)
def test_sizes_rise_and_end_where_they_should(given, steps):
    assert size_steps(*given) == steps


@pytest.mark.parametrize("given", [(0, 4, 2), (8, 4, 2), (4, 8, 1), (4, 8, -2)])
def test_other_ranges_are_refused(given):
    with pytest.raises(ArgumentError):
        size_steps(*given)
