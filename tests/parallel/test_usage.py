"""Parameters without gradients, parameters that come several times, parameters of other groups."""

import ml_dtypes
import numpy as np
import pytest

from hpcpar.errors import ArgumentError, MismatchError, UnsupportedError
from hpcpar.parallel import DDP, TopK
from hpcpar.parallel.hooks import GradBucket

TINY = {"first_bucket_nbytes": 1, "bucket_nbytes": 1}


def make(group, names="abc", **options):
    return DDP({name: np.zeros(2) for name in names}, group=group, **(TINY | options))


def report(step, **grads):
    for name, value in grads.items():
        step.put(name, np.full(2, float(value)))


def values(ddp):
    return {name: grad.tolist() for name, grad in ddp.grads.items()}


@pytest.mark.parametrize("unused", ["zero", "skip"])
def test_who_has_no_gradient_adds_zero(ranks, unused):
    def body(group):
        ddp = make(group, unused=unused)
        last = group.size - 1
        for _ in range(2):
            with ddp.step() as step:
                report(step, a=group.size)
                if group.rank == last:
                    report(step, b=group.size)
            wanted = {"a": [float(group.size)] * 2, "b": [1.0, 1.0]}
            assert values(ddp) == wanted | ({"c": [0.0, 0.0]} if unused == "zero" else {})
            assert step.grads is ddp.grads

    ranks(body)


def test_skip_counts_early_micro_steps(ranks):
    def body(group):
        ddp = make(group, unused="skip")
        with ddp.no_sync(), ddp.step(weight=1) as step:
            if group.rank == 0:
                report(step, c=group.size)
        with ddp.step(weight=1) as step:
            report(step, a=1.0)
        assert values(ddp) == {"a": [0.5, 0.5], "c": [0.5, 0.5]}

    ranks(body)


def test_a_skipped_step_without_any_gradient(ranks):
    def body(group):
        ddp = make(group, unused="skip")
        with ddp.step():
            pass
        assert values(ddp) == {}

    ranks(body)


def test_static_steps_take_gradients_several_times(ranks):
    def body(group):
        ddp = make(group, static=True, unused="skip")
        for number in range(3):
            with ddp.step(weight=2) as step:
                report(step, a=1 + group.rank)
                started = [step._reducer.num_started]
                report(step, a=10)
                started.append(step._reducer.num_started)
                report(step, b=5)
            assert started == ([0, 0] if number == 0 else [1, 2])  # c is not waited for
            assert values(ddp) == {"a": [11 + (group.size - 1) / 2] * 2, "b": [5.0, 5.0]}
            assert step._reducer.num_started == 3

    ranks(body)


def test_static_steps_must_be_alike(ranks):
    def body(group):
        ddp = make(group, static=True, unused="zero")
        with ddp.step() as step:
            report(step, a=1), report(step, a=2), report(step, b=3)
        with (
            pytest.raises(ArgumentError, match=r"'a' was reported 3 times, in the first step 2"),
            ddp.step() as step,
        ):
            report(step, a=1), report(step, a=2), report(step, a=2)
        with (
            pytest.raises(ArgumentError, match=r"'c' was reported 1 times, in the first step 0"),
            ddp.step() as step,
        ):
            report(step, c=1)
        with pytest.raises(ArgumentError, match="missing gradients: a"), ddp.step() as step:
            report(step, a=1, b=3)
        with ddp.step() as step:
            report(step, a=1), report(step, a=2), report(step, b=3)
        assert values(ddp) == {"a": [3.0, 3.0], "b": [3.0, 3.0], "c": [0.0, 0.0]}

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_options_must_be_equal(ranks):
    def body(group):
        first = group.rank == 0
        with pytest.raises(MismatchError, match=r"unused, static.*error, False.*skip, False"):
            make(group, unused="error" if first else "skip")
        with pytest.raises(MismatchError, match=r"grad_dtype.*None.*float32"):
            make(group, grad_dtype=None if first else "float32")
        with pytest.raises(MismatchError, match="buffer mean"):
            make(group, buffers={"mean": np.zeros(1 + group.rank)})
        assert group.all_reduce(1) == group.size

    ranks(body)


def test_refuses_bad_options(ranks):
    def body(group):
        for options, message in [
            ({"unused": "drop"}, "unused 'drop' must be 'error', 'zero' or 'skip'"),
            ({"grad_dtype": "int32"}, "grad_dtype int32 has no mean"),
            ({"grad_dtype": "complex64"}, "does not go with parameter 'a'"),
            ({"groups": {"x*": group}}, r"'x\*', which fits no parameter"),
            ({"buffers": {"m": 3.0}}, "buffer 'm' is a .*float"),
            ({"buffers": {"m": np.broadcast_to(1.0, 3)}}, "buffer 'm' is read-only"),
        ]:
            with pytest.raises(ArgumentError, match=message):
                make(group, **options)
        assert group.all_reduce(1) == group.size

    ranks(body)


def test_bfloat16_parameters_add_up_in_float32(ranks):
    def body(group):
        params = {"w": np.zeros(3).astype(ml_dtypes.bfloat16)}
        ddp = DDP(params, group=group, grad_dtype="float32")
        assert ddp.stats().bucket_nbytes == (12,)
        for _ in range(256):
            with ddp.no_sync(), ddp.step() as step:
                step.put("w", np.ones(3, params["w"].dtype))
        with ddp.step() as step:
            step.put("w", np.full(3, 1.0))
        assert ddp.grads["w"].dtype == np.float32
        assert ddp.grads["w"].tolist() == [257.0] * 3  # bfloat16 ends at 256
        assert (params["w"] == 0).all()

    ranks(body)


def test_buffers_follow_rank_0(ranks):
    def body(group):
        kept = {"mean": np.full(3, group.rank), "count": np.array(group.rank + 5)}
        ddp = make(group, buffers=kept)
        assert kept["mean"].tolist() == [0, 0, 0]
        kept["mean"] += 1 + group.rank
        with ddp.no_sync(), ddp.step() as step:
            report(step, a=1, b=1, c=1)
        assert kept["mean"].tolist() == [1 + group.rank] * 3
        with ddp.step() as step:
            assert kept["mean"].tolist() == [1, 1, 1]
            report(step, a=1, b=1, c=1)
        assert kept["count"] == 5

    ranks(body)


@pytest.mark.sizes(2, 4)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("accumulate", [False, True])
def test_experts_are_summed_where_they_are_and_divided_by_all(ranks, weighted, accumulate):
    """Two experts, each on half of the ranks: a rank's gradient is its tokens' part."""

    def body(group):
        half = group.split(group.rank % 2)
        params = {"gate": np.zeros(2), "experts.w": np.full(2, float(group.rank))}
        ddp = DDP(params, group=group, groups={"experts.*": half}, **TINY)
        assert params["experts.w"].tolist() == [group.rank % 2] * 2  # of the first in its group
        weight = float(group.rank + 1)
        steps = 2 if accumulate else 1
        for part in range(steps):
            step = ddp.step(weight if weighted else None)
            if part < steps - 1:
                with ddp.no_sync(), ddp.step(weight if weighted else None) as step:
                    report_experts(step, group)
            else:
                with step:
                    report_experts(step, group)
        weights = np.arange(1.0, group.size + 1) if weighted else np.ones(group.size)
        scale = 1 if weighted or not accumulate else 2
        mine = np.arange(group.size) % 2 == group.rank % 2
        grads = np.arange(group.size) + 1.0
        total = weights.sum()
        assert np.allclose(ddp.grads["gate"], scale * (weights @ grads) / total, rtol=1e-14)
        part = scale * (weights[mine] @ (10 * grads[mine])) / total
        assert np.allclose(ddp.grads["experts.w"], part, rtol=1e-14)
        half.close()

    ranks(body)


def report_experts(step, group):
    step.put("gate", np.full(2, group.rank + 1.0))
    step.put("experts.w", np.full(2, 10 * (group.rank + 1.0)))


@pytest.mark.sizes(2)
@pytest.mark.threads_only
def test_the_mean_over_the_experts_group_alone_would_be_wrong(ranks, monkeypatch):
    monkeypatch.setattr(GradBucket, "is_partial", False)
    with pytest.raises(AssertionError):
        test_experts_are_summed_where_they_are_and_divided_by_all(ranks, False, False)


def test_buckets_are_handed_on_as_they_arrive(ranks):
    def body(group):
        ddp = make(group)
        seen = []
        for weight in (None, 2.0):
            with ddp.step(weight, on_bucket=lambda grads: seen.append(dict(grads))) as step:
                report(step, c=3, b=2, a=1)
                assert seen == []
            assert [list(grads) for grads in seen] == [["c"], ["b"], ["a"]]
            assert [grads[name][0] for grads in seen for name in grads] == [3, 2, 1]
            seen.clear()
        with (
            pytest.raises(ArgumentError, match="missing gradients: a"),
            ddp.step(on_bucket=lambda grads: seen.append(grads)) as step,
        ):
            report(step, c=3, b=2)
        assert seen == []  # nothing was updated

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_static_steps_whose_unused_parameters_differ(ranks):
    def body(group):
        ddp = make(group, "ab", static=True, unused="zero")
        for _ in range(3):
            with ddp.step() as step:
                report(step, **({"a": 2.0} if group.rank == 0 else {"a": 2.0, "b": 6.0}))
            b = 6.0 * (group.size - 1) / group.size
            assert values(ddp) == {"a": [2.0, 2.0], "b": [b, b]}

    ranks(body)


def test_skipped_parameters_are_not_handed_on(ranks):
    def body(group):
        ddp = make(group, unused="skip")
        seen = {}
        with ddp.step(on_bucket=seen.update) as step:
            report(step, a=1)
        assert list(seen) == ["a"]

    ranks(body)


def test_steps_of_two_ddps_on_one_group_do_not_mix(ranks):
    def body(group):
        first, second = make(group), make(group)
        with first.step() as step:
            with pytest.raises(ArgumentError, match="a step of another DDP is open"), second.step():
                pass
            with (
                first.no_sync(),
                pytest.raises(ArgumentError, match="is open already"),
                first.step(),
            ):
                pass
            report(step, a=1, b=1, c=1)
        for ddp in (second, first):
            with ddp.step() as step:
                report(step, a=1, b=1, c=1)
            assert values(ddp) == {n: [1.0, 1.0] for n in "abc"}

    ranks(body)


def test_a_swallowed_mistake_does_not_open_the_door(ranks):
    def body(group):
        ddp = make(group)
        with ddp.step() as step:
            report(step, a=1, b=1, c=1)
            for _ in range(3):
                with pytest.raises(ArgumentError, match="reported twice"):
                    report(step, a=5)
        assert values(ddp)["a"] == [1.0, 1.0]

    ranks(body)


def test_whether_a_step_synchronises_is_decided_as_it_begins(ranks):
    def body(group):
        ddp = make(group)
        step = ddp.step()
        with ddp.no_sync(), step:
            report(step, a=1, b=1, c=1)
        assert values(ddp) == {}

    ranks(body)


@pytest.mark.sizes(2)
def test_hooks_of_experts_have_no_state_to_save(ranks):
    def body(group):
        alone = group.split(group.rank)
        ddp = make(group, groups={"b": alone}, hooks=[TopK(0.5)])
        with pytest.raises(UnsupportedError, match="what hooks keep"):
            ddp.state_dict()
        alone.close()

    ranks(body)
