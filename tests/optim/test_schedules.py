import math

import pytest

from hpcpar.errors import ArgumentError
from hpcpar.optim import warmup_cosine


def test_goldens():
    schedule = warmup_cosine(0.8, warmup=4, total=12, floor=0.2)
    wanted = {
        0: 0.2,  # 1/4 of the peak
        1: 0.4,
        3: 0.8,
        4: 0.8,
        6: 0.5 + 0.3 * math.sqrt(0.5),  # a quarter of the way down
        8: 0.5,
        10: 0.5 - 0.3 * math.sqrt(0.5),
        12: 0.2,
        1000: 0.2,
    }
    for step, rate in wanted.items():
        assert schedule(step) == pytest.approx(rate, rel=1e-14)


def test_without_warm_up_it_starts_at_the_peak():
    schedule = warmup_cosine(1.0, warmup=0, total=2)
    assert [schedule(s) for s in (0, 1, 2)] == pytest.approx([1.0, 0.5, 0.0], abs=1e-16)


def test_never_rises_after_the_warm_up():
    schedule = warmup_cosine(1.0, warmup=3, total=50)
    rates = [schedule(step) for step in range(2, 60)]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"floor": 2.0}, "floor is 2.0, needs 0 <= floor <= peak 1.0"),
        ({"floor": -0.1}, "floor is -0.1"),
        ({"peak": math.nan}, "peak nan"),
        ({"warmup": 10}, "warmup is 10, needs 0 <= warmup < total 10"),
        ({"warmup": -1}, "warmup is -1"),
    ],
)
def test_what_is_refused(change, message):
    settings = {"peak": 1.0, "warmup": 2, "total": 10, "floor": 0.0, **change}
    with pytest.raises(ArgumentError, match=message):
        warmup_cosine(settings.pop("peak"), **settings)
