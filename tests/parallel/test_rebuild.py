"""Buckets follow the order in which gradients were seen to come."""

import numpy as np
import pytest

from hpcpar.errors import ArgumentError
from hpcpar.parallel import DDP, PowerSGD, TopK

TINY = {"first_bucket_nbytes": 1, "bucket_nbytes": 1}


def run(ddp, order, scale=1.0):
    with ddp.step() as step:
        for name in order:
            step.put(name, np.full(ddp.params[name].shape, scale * (1.0 + "abcd".index(name))))
    return {name: float(grad.flat[0]) for name, grad in ddp.grads.items()}


def names(ddp):
    return [bucket.names for bucket in ddp.buckets]


def make(group, **options):
    params = {name: np.zeros(3 + i) for i, name in enumerate("abcd")}
    return DDP(params, group=group, **(TINY | options))


def test_rank_0_decides_and_the_gradients_stay_right(ranks):
    def body(group):
        ddp = make(group)
        assert names(ddp) == [("d",), ("c",), ("b",), ("a",)]
        order = "bdac" if group.rank == 0 else "abcd"
        wanted = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
        assert run(ddp, order) == wanted
        kept = {name: grad.copy() for name, grad in ddp.grads.items()}
        assert names(ddp) == [("d",), ("c",), ("b",), ("a",)]  # until the next step begins
        assert all((ddp.grads[name] == grad).all() for name, grad in kept.items())
        for scale in (2.0, 3.0):
            assert run(ddp, order, scale) == {n: scale * w for n, w in wanted.items()}
            assert names(ddp) == [("b",), ("d",), ("a",), ("c",)]
        assert run(ddp, "acbd") == wanted  # observed once
        assert names(ddp) == [("b",), ("d",), ("a",), ("c",)]

    ranks(body)


@pytest.mark.parametrize("caps", [{}, {"first_bucket_nbytes": 50, "bucket_nbytes": 60}])
def test_another_plan_fits_into_the_same_memory(ranks, caps):
    def body(group):
        ddp = make(group, **caps)
        memory = ddp._replica._memory._memory
        for order in ("bdac", "bdac"):
            run(ddp, order)
        assert ddp._replica._memory._memory is memory
        assert all(any(np.shares_memory(flat, m) for m in memory) for flat in flats(ddp))

    ranks(body)


def flats(ddp):
    return ddp._replica.layout.flats


def test_a_step_in_which_rank_0_has_no_gradient_of_something_is_no_measure(ranks):
    def body(group):
        ddp = make(group, unused="zero")
        run(ddp, "dba")
        run(ddp, "cdba")
        run(ddp, "abcd")
        assert names(ddp) == [("c",), ("d",), ("b",), ("a",)]

    ranks(body)


def test_a_step_that_failed_is_no_measure(ranks):
    def body(group):
        ddp = make(group)
        with pytest.raises(ArgumentError, match="missing gradients"), ddp.step() as step:
            step.put("a", np.zeros(3))
        run(ddp, "dcba"), run(ddp, "dcba")
        assert names(ddp) == [("d",), ("c",), ("b",), ("a",)]

    ranks(body)


def test_accumulated_gradients_keep_their_place_until_they_are_reduced(ranks):
    def body(group):
        ddp = make(group)
        run(ddp, "abcd")
        for _ in range(2):
            with ddp.no_sync():
                run(ddp, "dcba")
            assert run(ddp, "dcba") == {"a": 2.0, "b": 4.0, "c": 6.0, "d": 8.0}
        assert names(ddp) == [("a",), ("b",), ("c",), ("d",)]

    ranks(body)


def test_what_was_not_sent_moves_along(ranks):
    def body(group):
        hook = TopK(0.01)  # one of each bucket
        ddp = DDP(
            {name: np.zeros(2) for name in "ab"}, group=group, hooks=[hook], bucket_nbytes=100
        )
        sums = {name: np.zeros(2) for name in "ab"}
        for _ in range(12):
            with ddp.step() as step:
                for number, name in enumerate("ab"):
                    step.put(name, np.array([1.0 + number, 3.0 + number]))
            for name, total in sums.items():
                total += ddp.grads[name]
        rest = {name: hook._residual._layout.views[name] for name in "ab"}
        mean = {name: group.all_reduce(r.copy(), "mean") for name, r in rest.items()}
        for number, name in enumerate("ab"):
            assert np.allclose(sums[name] + mean[name], 12 * np.array([1.0 + number, 3 + number]))

    ranks(body)


def test_momentum_moves_along(ranks):
    def body(group):
        hook = TopK(0.3, momentum=0.5)
        ddp = DDP({name: np.zeros(3) for name in "ab"}, group=group, hooks=[hook])
        for number in range(3):
            with ddp.step() as step:
                for name in "ba" if number else "ab":
                    step.put(name, np.array([1.0, 2.0, 3.0]) + (name == "b"))
            before = {n: v.copy() for n, v in hook._velocity._layout.views.items()}
            ddp._replica.lay_out()  # takes up the order that was seen in the first step
            for name, velocity in hook._velocity._layout.views.items():
                assert np.array_equal(velocity, before[name])
        assert hook._velocity.buckets == ddp.buckets
        assert names(ddp) == [("a", "b")]

    ranks(body)


@pytest.mark.parametrize("hooks", [list, lambda: [PowerSGD(start_step=0, rank=2)]])
def test_state_goes_on_in_another_ddp(ranks, hooks):
    def body(group):
        def steps(ddp, start):
            for number in range(start, start + 3):
                with ddp.step() as step:
                    for name in "ba":
                        value = np.arange(64.0).reshape(8, 8) + number * (1 + group.rank)
                        step.put(name, np.sin(value + ord(name)))
            return {name: grad.copy() for name, grad in ddp.grads.items()}

        def fresh():
            params = {name: np.zeros((8, 8)) for name in "ab"}
            return DDP(params, group=group, hooks=hooks(), **TINY)

        first = fresh()
        steps(first, 0)
        state = first.state_dict()
        assert all(isinstance(leaf, int | str | np.ndarray) for leaf in state.values())
        second = fresh()
        second.load_state_dict(state)
        for name, grad in steps(first, 3).items():
            assert np.array_equal(steps(second, 3)[name] if name == "b" else grad, grad)
        assert names(second) == names(first)
        with pytest.raises(ArgumentError, match="other parameters"):
            DDP({"x": np.zeros(1)}, group=group).load_state_dict(state)

    ranks(body)
