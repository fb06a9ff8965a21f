"""Data parallel steps: exact means, weights, accumulation, order, and what is refused."""

import doctest
import math

import ml_dtypes
import numpy as np
import pytest

from hpcpar.comm import reduce_requests, reductions
from hpcpar.errors import ArgumentError
from hpcpar.parallel import DDP, StepTimes, bucket, ddp, hooks, reducer, stats
from hpcpar.parallel import step as step_module

SMALL = {"first_bucket_nbytes": 1, "bucket_nbytes": 40}  # several buckets from tiny arrays


def make(group, shapes, dtype="float64", **options):
    params = {name: np.full(shape, group.rank + 1.0).astype(dtype) for name, shape in shapes}
    return DDP(params, group=group, **(SMALL | options))


def flats(ddp):
    return ddp._replica.layout.flats


def report(step, grads):
    for name, grad in grads.items():
        step.put(name, np.asarray(grad))


def still_works(group):
    assert group.all_reduce(np.array([group.rank + 1.0]))[0] == group.size * (group.size + 1) / 2


def rising(shape, start):
    return np.arange(start, start + np.prod(shape, dtype=int), dtype=float).reshape(shape)


SHAPES = [("w", (3, 4)), ("b", (4,)), ("scalar", ()), ("empty", (0, 2)), ("v", (5,))]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16", "complex64"])
def test_gradients_are_the_mean_over_ranks(ranks, dtype):
    def body(group):
        ddp = make(group, SHAPES, dtype)
        assert len(ddp.buckets) > 1
        for scale in (2, 6):  # the second step must not see the first
            with ddp.step() as step:
                report(step, {n: rising(s, group.rank) * scale for n, s in SHAPES})
            mean = (group.size - 1) / 2
            for name, shape in SHAPES:
                assert ddp.grads[name].shape == shape
                assert ddp.grads[name].dtype == dtype
                assert np.array_equal(ddp.grads[name], (rising(shape, 0) + mean) * scale), name
            assert step.grads is ddp.grads
            assert any(np.shares_memory(ddp.grads["w"], flat) for flat in flats(ddp))

    ranks(body)


def test_parameters_become_those_of_rank_0(ranks):
    def body(group):
        ddp = make(group, SHAPES)
        assert all((p == 1).all() for p in ddp.params.values())
        strided = np.full((4, 6), group.rank + 1.0)[::-2, ::3]
        DDP({"p": strided}, group=group)
        assert (strided == 1).all()
        own = np.array([group.rank + 1.0])
        DDP({"p": own}, group=group, broadcast=False)
        assert own[0] == group.rank + 1

    ranks(body)


@pytest.mark.sizes(2)
def test_accumulation_averages_parameters_touched_only_in_an_early_micro_step(ranks):
    def body(group):
        ddp = make(group, [("w1", (1,)), ("w2", (1,))])
        for _ in range(2):
            with ddp.no_sync(), ddp.step() as step:
                report(step, {"w1": [group.rank + 1.0]})
            assert ddp.grads == step.grads == {}
            with ddp.step() as step:
                report(step, {"w2": [10.0 * (group.rank + 1)]})
            assert (ddp.grads["w1"][0], ddp.grads["w2"][0]) == (1.5, 15.0)

    ranks(body)


def test_micro_steps_add_up_and_only_the_last_one_communicates(ranks):
    def body(group):
        ddp = make(group, SHAPES)
        with ddp.no_sync():
            for part in (1, 2):
                with ddp.step() as step:
                    report(step, {n: rising(s, part + group.rank) for n, s in SHAPES})
                assert step._reducer.num_started == 0
        with ddp.step() as step:
            report(step, {n: rising(s, 3 + group.rank) for n, s in SHAPES})
        assert step._reducer.num_started == len(ddp.buckets)
        for name, shape in SHAPES:
            expected = 3 * rising(shape, 0) + 6 + 3 * (group.size - 1) / 2
            assert np.array_equal(ddp.grads[name], expected)
        assert ddp.stats().steps == 1

    ranks(body)


@pytest.mark.sizes(2)
def test_a_tied_parameter_is_reduced_once(ranks):
    def body(group):
        table = np.ones(2)
        # the other order on rank 1: rank 0's first name counts
        params = {"emb": table, "head": table} if group.rank == 0 else {"head": table, "emb": table}
        ddp = DDP(params, group=group)
        assert list(ddp.params) == ["emb"]
        assert sum(bucket.count for bucket in ddp.buckets) == 2
        for name in ("emb", "head"):
            with ddp.step() as step:
                report(step, {name: [1.0 + 2 * group.rank] * 2})
            assert ddp.grads["emb"].tolist() == [2.0, 2.0]
        with pytest.raises(ArgumentError, match="'head' was reported twice"), ddp.step() as step:
            report(step, {"emb": [1.0, 1.0], "head": [1.0, 1.0]})
        still_works(group)

    ranks(body)


@pytest.mark.sizes(2)
def test_ready_and_registration_order_may_differ_between_ranks(ranks):
    def body(group):
        shapes = [("a", (4,)), ("b", (4,))]
        ddp = make(group, shapes[:: 1 - 2 * group.rank])
        assert list(ddp.params) == ["a", "b"]
        grads = {"a": np.full(4, 1.0 + 2 * group.rank), "b": np.full(4, 10.0 + 20 * group.rank)}
        with ddp.step() as step:
            report(step, dict(list(grads.items())[:: 1 - 2 * group.rank]))
        assert (ddp.grads["a"] == 2).all()
        assert (ddp.grads["b"] == 20).all()

    ranks(body)


def test_buckets_leave_in_plan_order_as_soon_as_they_may(ranks):
    def body(group):
        ddp = make(group, [("c", (5,)), ("b", (5,)), ("a", (5,))])
        assert [bucket.names for bucket in ddp.buckets] == [("a",), ("b",), ("c",)]
        launched = []
        with ddp.step() as step:
            for name in "cab":
                report(step, {name: np.ones(5)})
                launched.append(step._reducer.num_started)
        assert launched == [0, 1, 3]

    ranks(body)


def test_fill_writes_straight_into_the_bucket():
    calls = []
    ddp = DDP({"w": np.zeros(3)})

    def fill(out=None, add=False):
        calls.append((out, add))
        out[...] = out + 1 if add else 1
        return out

    with ddp.no_sync(), ddp.step() as step:
        step.on_grad("w", fill)
    with ddp.step() as step:
        step.on_grad("w", fill)
    assert [add for _, add in calls] == [False, True]
    assert all(np.shares_memory(out, flats(ddp)[0]) for out, _ in calls)
    assert ddp.grads["w"].tolist() == [2.0, 2.0, 2.0]


def test_a_frozen_parameter_is_not_computed_nor_sent(ranks):
    def body(group):
        def never(out=None, add=False):
            raise AssertionError

        ddp = make(group, [("w", (2,))])
        with ddp.step() as step:
            step.on_grad("frozen", never)
            report(step, {"w": [1.0, 2.0]})
        assert list(ddp.grads) == ["w"]

    ranks(body)


# --- weights ---------------------------------------------------------------------------------


def weighted(group, dtype="float64"):
    """Rank r has r + 1 tokens with gradients 2, 4, 6, ...: local means of unequal counts."""
    ddp = make(group, [("w", (2,)), ("b", ())], dtype)
    tokens = group.rank + 1
    first = sum(range(1, group.rank + 1))
    values = 2.0 * (np.arange(first, first + tokens) + 1)
    with ddp.step(weight=tokens) as step:
        report(step, {"w": [values.mean(), 1.0], "b": values.mean()})
    return ddp.grads["w"].tolist(), float(ddp.grads["b"].real)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_weights_give_the_mean_over_all_tokens(ranks, dtype):
    def body(group):
        count = group.size * (group.size + 1) // 2
        assert weighted(group, dtype) == ([count + 1.0, 1.0], count + 1.0)

    ranks(body)


@pytest.mark.sizes(2, 3)
@pytest.mark.threads_only
@pytest.mark.parametrize("mutation", ["drop the weight", "drop the divisor", "multiply twice"])
def test_wrong_scales_are_seen(ranks, monkeypatch, mutation):
    if mutation == "multiply twice":
        monkeypatch.setattr(step_module, "Portion", lambda w, m: reductions.Portion(w, not m))
    elif mutation == "drop the weight":
        monkeypatch.setattr(step_module, "Portion", lambda w, m: reductions.Portion(1.0, m))
    else:
        monkeypatch.setattr(reduce_requests, "_total", lambda headers: float(len(headers)))

    def body(group):
        count = group.size * (group.size + 1) // 2
        assert weighted(group) != ([count + 1.0, 1.0], count + 1.0)

    ranks(body)


@pytest.mark.sizes(2)
def test_mean_of_means_is_not_the_mean(ranks):
    def body(group):
        ddp = make(group, [("w", (1,))])
        losses = [[1.0, 2, 3, 4], [10.0]][group.rank]
        with ddp.step(weight=len(losses)) as step:
            report(step, {"w": [np.mean(losses)]})
        assert ddp.grads["w"][0] == 4.0

    ranks(body)


@pytest.mark.sizes(2, 3, 4)
def test_a_rank_without_tokens_adds_nothing_not_even_nan(ranks):
    def body(group):
        ddp = make(group, SHAPES)
        idle = group.rank == 0
        with ddp.step(weight=0 if idle else 2) as step:
            report(step, {n: np.full(s, np.nan) if idle else rising(s, 1) for n, s in SHAPES})
        for name, shape in SHAPES:
            assert np.allclose(ddp.grads[name], rising(shape, 1), rtol=1e-15, atol=0)

    ranks(body)


def test_no_tokens_at_all_give_zero_gradients(ranks):
    def body(group):
        ddp = make(group, SHAPES)
        for weight in (1, 0):
            with ddp.step(weight=weight) as step:
                report(step, {n: np.full(s, np.inf if weight == 0 else 7.0) for n, s in SHAPES})
        assert all((grad == 0).all() for grad in ddp.grads.values())

    ranks(body)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_weights_of_micro_steps_count_as_those_of_ranks(ranks, dtype):
    def body(group):
        ddp = make(group, [("w", (2,)), ("v", (2,))], dtype)
        with ddp.no_sync(), ddp.step(weight=3) as step:
            report(step, {"w": [2.0, 4.0]})
        with ddp.no_sync(), ddp.step(weight=0) as step:
            report(step, {"w": [np.nan, np.inf]})
        with ddp.step(weight=1) as step:
            report(step, {"w": [6.0, 8.0], "v": [4.0, 8.0]})
        assert ddp.grads["w"].tolist() == [3.0, 5.0]
        assert ddp.grads["v"].tolist() == [1.0, 2.0]

    ranks(body)


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf")])
def test_refuses_bad_weights(ranks, weight):
    def body(group):
        ddp = make(group, [("w", (2,))])
        with pytest.raises(ArgumentError, match=r"weight .* must be a finite number >= 0"):
            ddp.step(weight=weight)
        with ddp.no_sync(), ddp.step(weight=1) as step:
            report(step, {"w": [1.0, 1.0]})
        with pytest.raises(ArgumentError, match="in all micro-steps or in none"), ddp.step():
            pass
        with ddp.step(weight=1) as step:
            report(step, {"w": [1.0, 3.0]})
        assert ddp.grads["w"].tolist() == [1.0, 2.0]
        still_works(group)

    ranks(body)


def test_bfloat16_weights_are_not_rounded():
    ddp = DDP({"w": np.zeros(1, ml_dtypes.bfloat16)})
    with ddp.step(weight=1001) as step:  # bfloat16 would make it 1000
        report(step, {"w": [1.0]})
    assert ddp.grads["w"][0] == 1.0


def test_stats_count_bytes_and_waiting(ranks):
    def body(group):
        ddp = make(group, [("a", (5,)), ("b", (6,)), ("c", (2,))])
        assert ddp.stats().total == StepTimes()
        for _ in range(2):
            with ddp.step() as step:
                report(step, {"a": np.ones(5), "b": np.ones(6), "c": np.ones(2)})
        stats = ddp.stats()
        assert stats.bucket_nbytes == (40, 48, 16)  # in the order in which they came
        assert stats.steps == 2
        total, last = stats.total, stats.last
        assert 0 < last.waiting < total.waiting < total.seconds
        parts = total.forward + total.backward + total.waiting
        assert math.isclose(parts, total.seconds, rel_tol=1e-9)
        assert 0 < total.wait_share < 1
        assert 0 < total.packing < total.backward
        assert total.communicating > 0
        assert 0 <= total.overlap <= 1
        count = 5 + 6 + 2
        assert group.all_reduce(last.sent) == 2 * (group.size - 1) * count * 8
        assert total.busbw == total.sent / total.communicating

    ranks(body)


def test_examples():
    for module in (bucket, ddp, hooks, reducer, stats):
        assert doctest.testmod(module).failed == 0
