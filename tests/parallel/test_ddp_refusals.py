"""What DDP refuses, on all ranks alike, and that nobody hangs."""

import numpy as np
import pytest

from hpcpar.errors import ArgumentError, GroupFailed, MismatchError, RankFailed
from hpcpar.parallel import DDP

ONE_PER_BUCKET = {"first_bucket_nbytes": 1, "bucket_nbytes": 1}


def make(group, names="abc"):
    return DDP({name: np.zeros(2) for name in names}, group=group, **ONE_PER_BUCKET)


def report(step, names):
    for name in names:
        step.put(name, np.ones(2))


def works_again(ddp):
    """The group and the DDP go on, and nothing of the failed step shows."""
    assert ddp.grads == {}
    with ddp.step() as step:
        report(step, ddp.params)
    assert all(grad.tolist() == [1.0, 1.0] for grad in ddp.grads.values())
    assert ddp.group.all_reduce(np.array([1]))[0] == ddp.group.size


def test_a_missing_gradient_is_named_at_once_on_all_ranks(ranks):
    def body(group):
        ddp = make(group)
        with (
            pytest.raises(ArgumentError, match="rank 0: missing gradients: a, c") as caught,
            ddp.step() as step,
        ):
            report(step, "b" if group.rank == 0 else "abc")
        assert ("rank 1" in str(caught.value)) is (group.rank == 1)  # only where it happened
        works_again(ddp)

    ranks(body)


@pytest.mark.sizes(2)
def test_a_gradient_missing_in_the_next_step_does_not_show_the_last(ranks):
    def body(group):
        ddp = make(group, "ab")
        with ddp.step() as step:
            report(step, "ab")
        with pytest.raises(ArgumentError, match="missing gradients: b"), ddp.step() as step:
            step.put("a", np.full(2, 10.0))
        assert ddp.grads == step.grads == {}
        assert (ddp._replica.layout.views["b"] == 0).all()
        works_again(ddp)

    ranks(body)


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize("after_all", [False, True])
def test_a_gradient_reported_twice_is_refused_at_once_and_told_to_all(ranks, after_all):
    def body(group):
        ddp = make(group)
        last = group.rank == group.size - 1
        with (
            pytest.raises(ArgumentError, match="'c' was reported twice") as caught,
            ddp.step() as step,
        ):
            report(step, "abc" if after_all else "c")
            if last:
                report(step, "c")
                pytest.fail("not raised at once")
            report(step, "" if after_all else "ab")
        assert ("No gradients were set" in str(caught.value)) is not last
        works_again(ddp)

    ranks(body)


@pytest.mark.sizes(2, 4)
@pytest.mark.parametrize("reported", ["", "c", "abc"])
def test_an_exception_in_one_block_fails_the_step_everywhere(ranks, reported):
    def body(group):
        ddp = make(group)
        expected = ZeroDivisionError if group.rank == 1 else RankFailed
        with pytest.raises(expected) as caught, ddp.step() as step:
            report(step, reported if group.rank == 1 else "abc")
            if group.rank == 1:
                raise ZeroDivisionError("no tokens")
        if group.rank != 1:
            assert "rank 1: ZeroDivisionError: no tokens" in str(caught.value)
        works_again(ddp)

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_the_same_exception_on_all_ranks_stays_itself(ranks):
    def body(group):
        ddp = make(group)
        with pytest.raises(KeyError), ddp.step() as step:
            report(step, "ca"[: group.rank])
            raise KeyError("x")
        works_again(ddp)

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_an_exception_in_a_micro_step_is_told_at_the_next_synchronised_one(ranks):
    def body(group):
        ddp = make(group)
        try:
            with ddp.no_sync(), ddp.step() as step:
                report(step, "ab")
                if group.rank == 1:
                    raise MemoryError("too long")
                report(step, "c")
        except MemoryError:
            pass  # a user who drops the batch
        with (
            pytest.raises(ArgumentError, match=r"rank 1: .*MemoryError: too long"),
            ddp.step() as step,
        ):
            report(step, "abc")
        works_again(ddp)

    ranks(body)


@pytest.mark.sizes(2, 3)
@pytest.mark.threads_only
def test_an_interrupt_aborts_the_group_and_nobody_hangs(ranks):
    def interrupted(group):
        with make(group).step() as step:
            report(step, "c" if group.rank == 0 else "abc")
            if group.rank == 0:
                raise KeyboardInterrupt

    def body(group):
        with pytest.raises(KeyboardInterrupt if group.rank == 0 else GroupFailed):
            interrupted(group)
        assert group.state == "failed"

    ranks(body)


def test_one_step_at_a_time(ranks):
    def body(group):
        ddp = make(group)
        with (
            pytest.raises(ArgumentError, match="a step is open already"),
            ddp.step(),
            ddp.step(),
        ):
            pass
        works_again(ddp)

    ranks(body)


def test_a_gradient_outside_the_block_is_refused(ranks):
    def body(group):
        ddp = make(group)
        for step in (ddp.step(), ddp.step()):
            with pytest.raises(ArgumentError, match="'a' was reported outside its block"):
                report(step, "a")
            with step:
                report(step, "abc")
        with pytest.raises(ArgumentError, match="'a' was reported outside its block"):
            report(step, "a")
        assert ddp.grads["a"].tolist() == [1.0, 1.0]

    ranks(body)


def test_the_hook_of_an_earlier_step_is_refused(ranks):
    def body(group):
        ddp = make(group)
        with pytest.raises(KeyError), ddp.step() as failed:
            raise KeyError("a sample")
        with ddp.step() as step:
            with pytest.raises(ArgumentError, match="'a' was reported outside its block"):
                report(failed, "a")
            report(step, "abc")
        assert ddp.grads["a"].tolist() == [1.0, 1.0]

    ranks(body)


def test_a_wrong_shape_is_refused(ranks):
    def body(group):
        ddp = make(group)
        with (
            pytest.raises(ArgumentError, match=r"'a' has shape \(3,\), must be \(2,\)"),
            ddp.step() as step,
        ):
            step.put("a", np.ones(3))
        works_again(ddp)

    ranks(body)


def other(kind, differs):
    params = {"a": np.zeros(2), "b": np.zeros((2, 3))}
    options = {}
    if not differs:
        return params, options
    if kind == "name":
        params["c"] = params.pop("b")
    elif kind == "count":
        params["c"] = np.zeros(1)
    elif kind == "shape":
        params["b"] = np.zeros((3, 2))
    elif kind == "dtype":
        params["b"] = params["b"].astype(np.float32)
    elif kind == "bucket":
        options["bucket_nbytes"] = 77
    return params, options


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("name", r"'b': .*nothing"),
        ("count", r"'c': .*nothing.*float64\(1,\)"),
        ("shape", r"'b': .*float64\(2, 3\).*float64\(3, 2\)"),
        ("dtype", r"'b': .*float64\(2, 3\).*float32\(2, 3\)"),
        ("bucket", r"bucket_nbytes.*: .*26214400.*77"),
    ],
)
@pytest.mark.parametrize("who", [0, 1])
def test_ranks_with_other_parameters_are_named_on_all_ranks(ranks, kind, message, who):
    def body(group):
        params, options = other(kind, group.rank == who)
        if who == 0:
            with pytest.raises(MismatchError, match="DDP: ranks disagree on"):
                DDP(params, group=group, **options)
        else:
            with pytest.raises(MismatchError, match=message):
                DDP(params, group=group, **options)
        works_again(make(group))

    ranks(body)


@pytest.mark.sizes(2)
def test_a_tie_on_one_rank_only_is_a_mismatch(ranks):
    def body(group):
        first, second = np.zeros(2), np.zeros(2)
        params = {"a": first, "b": second if group.rank else first}
        with pytest.raises(MismatchError, match=r"'a': .*tied to b"):
            DDP(params, group=group)

    ranks(body)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3.0, "'p' is a .*float.*, must be an array"),
        (np.zeros(2, int), "'p' has dtype int64, which has no mean"),
        (np.broadcast_to(0.0, 2), "'p' is read-only"),
    ],
)
def test_refuses_what_cannot_be_trained(ranks, value, message):
    def body(group):
        with pytest.raises(ArgumentError, match=message):
            DDP({"p": value}, group=group)
        with pytest.raises(ArgumentError, match="cap 0 must be at least 1 byte"):
            DDP({"p": np.zeros(1)}, group=group, bucket_nbytes=0)
        works_again(make(group))

    ranks(body)


def test_no_parameters_at_all(ranks):
    def body(group):
        ddp = DDP({}, group=group)
        with ddp.step():
            pass
        assert ddp.grads == {}

    ranks(body)


@pytest.mark.sizes(2, 3)
@pytest.mark.threads_only
def test_a_rank_that_fails_while_the_others_are_in_another_verb_does_not_hang_them(ranks):
    def body(group):
        ddp = make(group)
        first = ZeroDivisionError if group.rank == 0 else (MismatchError, GroupFailed)
        with pytest.raises(first) as caught, ddp.step() as step:
            report(step, "cb")
            if group.rank == 0:
                raise ZeroDivisionError
            group.all_gather(np.ones(3))
            report(step, "a")
        assert group.state == "failed"
        assert (group.rank != 0) or "The group was aborted" in caught.value.__notes__[0]

    ranks(body)


@pytest.mark.sizes(2, 4)
def test_a_weight_on_one_rank_only_is_a_mismatch_on_all(ranks):
    def body(group):
        ddp = make(group)
        for steps in (0, 20):  # MPI alone compares only the first calls of a kind
            for _ in range(steps):
                with ddp.step() as step:
                    report(step, "abc")
            with (
                pytest.raises(MismatchError, match=f"on weight: 1 of {group.size} gave one"),
                ddp.step(weight=1.0 if group.rank == 0 else None) as step,
            ):
                report(step, "abc")
            assert ddp.grads == {}
            works_again(ddp)

    ranks(body)
