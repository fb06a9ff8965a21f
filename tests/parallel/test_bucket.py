"""The bucket plan against the published sizes of ResNet-18, and its rules one by one."""

import doctest

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.errors import ArgumentError
from hpcpar.parallel import bucket as module
from hpcpar.parallel.bucket import plan_buckets

F4 = np.dtype("float32")
F8 = np.dtype("float64")
MIB = 2**20


def norm(name, width):
    return [(f"{name}.weight", (width,)), (f"{name}.bias", (width,))]


def basic_block(name, inner, outer, shrink):
    conv1 = [(f"{name}.conv1.weight", (outer, inner, 3, 3)), *norm(f"{name}.bn1", outer)]
    conv2 = [(f"{name}.conv2.weight", (outer, outer, 3, 3)), *norm(f"{name}.bn2", outer)]
    down = [(f"{name}.downsample.0.weight", (outer, inner, 1, 1))]
    return conv1 + conv2 + (down + norm(f"{name}.downsample.1", outer) if shrink else [])


def resnet18():
    shapes = [("conv1.weight", (64, 3, 7, 7)), *norm("bn1", 64)]
    width = 64
    for stage, outer in enumerate((64, 128, 256, 512), 1):
        shapes += basic_block(f"layer{stage}.0", width, outer, outer != width)
        shapes += basic_block(f"layer{stage}.1", outer, outer, False)
        width = outer
    shapes += [("fc.weight", (1000, 512)), ("fc.bias", (1000,))]
    return {name: (shape, F4) for name, shape in shapes}


@pytest.mark.parametrize(
    ("cap", "sizes"),
    [(25, [2052000, 28852224, 15853824]), (35, [2052000, 38297600, 6408448])],
)
def test_resnet18_has_the_published_buckets(cap, sizes):
    plan = plan_buckets(resnet18(), cap=cap * MIB)
    assert [bucket.nbytes for bucket in plan] == sizes
    assert sum(bucket.count for bucket in plan) == 11_689_512
    assert [name for bucket in plan for name in bucket.names] == list(reversed(resnet18()))


def test_a_bucket_closes_once_its_size_reaches_the_cap():
    layouts = {f"p{i}": ((4,), F4) for i in range(5)}
    plan = plan_buckets(layouts, first_cap=16, cap=17)
    assert [b.names for b in plan] == [("p4",), ("p3", "p2"), ("p1", "p0")]


def test_one_dtype_per_bucket_ordered_by_the_last_member_to_become_ready():
    layouts = {"a": ((2,), F4), "b": ((2,), F8), "c": ((2,), F4), "d": ((2,), F8)}
    plan = plan_buckets(layouts)
    assert [(b.dtype, b.names) for b in plan] == [(F8, ("d", "b")), (F4, ("c", "a"))]
    bf16 = np.dtype(ml_dtypes.bfloat16)
    plan = plan_buckets(layouts | {"e": ((3,), bf16)}, first_cap=16)
    assert [b.names for b in plan] == [("e",), ("d",), ("b",), ("c", "a")]
    assert plan[0].nbytes == 6


def test_views_are_dense_and_share_the_buffer():
    plan = plan_buckets({"m": ((2, 3), F4), "none": ((0, 8), F4), "scalar": ((), F4)})
    (bucket,) = plan
    flat = np.zeros(bucket.count, F4)
    views = bucket.views(flat)
    assert {name: view.shape for name, view in views.items()} == {
        "scalar": (),
        "none": (0, 8),
        "m": (2, 3),
    }
    assert bucket.starts == (0, 1, 1)
    views["scalar"][...] = 7
    views["m"][...] = np.arange(6).reshape(2, 3)
    assert flat.tolist() == [7, 0, 1, 2, 3, 4, 5]


def test_no_parameters_no_buckets():
    assert plan_buckets({}) == ()
    (bucket,) = plan_buckets({"empty": ((0,), F4)})
    assert bucket.nbytes == 0


@pytest.mark.parametrize("caps", [{"cap": 0}, {"first_cap": -1}])
def test_refuses_caps_below_one_byte(caps):
    with pytest.raises(ArgumentError, match=f"{next(iter(caps))} .* at least 1 byte"):
        plan_buckets({}, **caps)


@settings(derandomize=True, database=None, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=3), st.sampled_from([F4, F8]))),
    st.integers(1, 200),
    st.integers(1, 400),
)
def test_every_parameter_is_in_one_bucket_and_only_the_last_of_a_dtype_is_below_its_cap(
    members, first_cap, cap
):
    layouts = {f"p{i}": (tuple(shape), dtype) for i, (shape, dtype) in enumerate(members)}
    plan = plan_buckets(layouts, first_cap=first_cap, cap=cap)
    found = [(n, (s, b.dtype)) for b in plan for n, s in zip(b.names, b.shapes, strict=True)]
    assert sorted(found) == sorted(layouts.items(), key=lambda item: item[0])
    for dtype in (F4, F8):
        mine = [bucket for bucket in plan if bucket.dtype == dtype]
        for index, bucket in enumerate(mine[:-1]):
            limit = cap if index else first_cap
            without_last = bucket.nbytes - bucket.counts[-1] * dtype.itemsize
            assert without_last < limit <= bucket.nbytes


def test_examples():
    assert doctest.testmod(module).failed == 0
