"""Ranks that take different numbers of steps."""

import numpy as np
import pytest

from hpcpar.errors import ArgumentError, GroupFailed, MismatchError, RankFailed, UnsupportedError
from hpcpar.parallel import DDP, LocalSGD, PowerSGD, TopK

COUNTS = (3, 1, 4, 0)  # steps of each rank


def make(group, **options):
    params = {"w": np.zeros(3), "v": np.zeros((2, 2))}
    return DDP(params, group=group, first_bucket_nbytes=1, bucket_nbytes=1, **options)


def step_of(ddp, value, weight=None):
    with ddp.step(weight) as step:
        step.put("w", np.full(3, float(value)))
        step.put("v", np.full((2, 2), 10.0 * value))
    for name, param in ddp.params.items():
        if name in ddp.grads:
            param -= ddp.grads[name]


@pytest.mark.parametrize("buffers", [False, True])
@pytest.mark.parametrize("by", ["initial", "running", "weight"])
def test_the_others_go_on_and_the_last_model_wins(ranks, by, buffers):
    def body(group):
        kept = {"count": np.array(0)} if buffers else {}
        ddp = make(group, buffers=kept)
        mine = COUNTS[group.rank]
        with ddp.join(divide_by_initial_world_size=by == "initial") as join:
            for _ in range(mine):
                step_of(ddp, group.rank + 1, 2.0 if by == "weight" else None)
                kept.get("count", np.array(0))[...] += 1
        expected = 0.0
        longest = max(COUNTS[: group.size])
        for number in range(longest):
            running = [r for r in range(group.size) if COUNTS[r] > number]
            total = sum(r + 1.0 for r in running)
            expected -= total / (group.size if by == "initial" else len(running))
        assert np.allclose(ddp.params["w"], expected, rtol=1e-14)
        assert np.allclose(ddp.params["v"], 10 * expected, rtol=1e-14)
        assert join.shadowed == longest - mine
        uneven = len(set(COUNTS[: group.size])) > 1
        assert join.last == (COUNTS.index(longest) if uneven else None)
        if buffers:
            assert kept["count"] == longest  # they follow who has data
        step_of(ddp, 0)  # after the block all is as before
        assert np.allclose(ddp.params["w"], expected, rtol=1e-14)

    ranks(body)


@pytest.mark.parametrize("hook", [lambda: TopK(0.5), lambda: PowerSGD(1, start_step=1)])
@pytest.mark.parametrize("unused", ["zero", "skip"])
def test_hooks_and_policies_go_along(ranks, hook, unused):
    def body(group):
        ddp = make(group, hooks=[hook()], unused=unused)
        with ddp.join():
            for _ in range(COUNTS[group.rank]):
                step_of(ddp, group.rank + 1, weight=1.0)
        flat = np.concatenate([p.reshape(-1) for p in ddp.params.values()])
        assert (group.all_gather(flat[None]) == flat).all()

    ranks(body)


def test_accumulation_within_a_join(ranks):
    def body(group):
        ddp = make(group)
        with ddp.join():
            for _ in range(1 + group.rank):
                with ddp.no_sync(), ddp.step() as step:
                    step.put("w", np.ones(3))
                step_of(ddp, 1)
        expected = -sum(2.0 * (group.size - n) / group.size for n in range(group.size))
        assert np.allclose(ddp.params["w"], expected)

    ranks(body)


@pytest.mark.sizes(2, 3)
@pytest.mark.threads_only
def test_another_collective_in_the_block_is_explained(ranks):
    def block(ddp, group):
        with ddp.join():
            for _ in range(1 + group.rank):
                step_of(ddp, 1)
                group.all_reduce(np.ones(3))

    def body(group):
        with pytest.raises((MismatchError, GroupFailed)) as caught:
            block(make(group), group)
        if isinstance(caught.value, MismatchError):
            text = "\n".join([str(caught.value), *caught.value.__notes__])
            assert "disagree" in text
            assert "ranks that ran out of data take part in the steps of the DDP" in text
        assert group.state == "failed"

    ranks(body)


@pytest.mark.sizes(2, 4)
def test_an_exception_in_a_block_reaches_all(ranks):
    def body(group):
        ddp = make(group)
        expected = ZeroDivisionError if group.rank == 1 else RankFailed
        with pytest.raises(expected, match="no data" if group.rank == 1 else "rank 1"), ddp.join():
            for number in range(1 + group.rank):
                if group.rank == 1 and number == 1:
                    raise ZeroDivisionError("no data")
                step_of(ddp, 1)
        assert group.all_reduce(1) == group.size
        step_of(ddp, 1)

    ranks(body)


@pytest.mark.sizes(2)
def test_what_is_refused(ranks):
    def body(group):
        ddp = make(group)
        with ddp.join(), pytest.raises(ArgumentError, match="block of it"), ddp.join():
            pass
        with pytest.raises(ArgumentError, match="a step, is open"), ddp.step() as step:
            step.put("w", np.ones(3))
            step.put("v", np.ones((2, 2)))
            with ddp.join():
                pass
        alone = group.split(group.rank)
        experts = make(group, groups={"v": alone})
        with pytest.raises(UnsupportedError, match="groups of their own"), experts.join():
            pass
        alone.close()
        step_of(ddp, 1)

    ranks(body)


@pytest.mark.sizes(3, 4)
def test_a_step_that_fails_beside_a_finished_rank_reaches_all(ranks):
    def body(group):
        ddp = make(group)
        expected = ZeroDivisionError if group.rank == 1 else RankFailed
        with pytest.raises(expected), ddp.join():
            for number in range(1 if group.rank == 0 else 3):
                with ddp.step() as step:
                    step.put("w", np.ones(3))
                    if group.rank == 1 and number == 1:
                        raise ZeroDivisionError("no tokens")
                    step.put("v", np.ones((2, 2)))
        assert group.state == "ok"
        assert group.all_reduce(1) == group.size
        step_of(ddp, 1)

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_static_steps_begin_with_the_first_of_ones_own(ranks):
    def body(group):
        ddp = make(group, static=True)
        for _ in range(2):
            with ddp.join():
                for _ in range(group.rank):  # rank 0 has none in the first block
                    step_of(ddp, 1)
        for _ in range(2):
            step_of(ddp, 1)

    ranks(body)


def test_micro_steps_that_were_not_synchronised_are_dropped(ranks):
    def body(group):
        ddp = make(group)
        with ddp.join():
            if group.rank == 0:
                with ddp.no_sync(), ddp.step() as step:
                    step.put("w", np.full(3, 100.0))
            else:
                step_of(ddp, 1)
        want = -(group.size - 1) / group.size
        assert np.allclose(ddp.params["w"], want)

    ranks(body)


def test_local_sgd_is_refused(ranks):
    def body(group):
        ddp = make(group, hooks=[LocalSGD(2, start_step=0)])
        with pytest.raises(UnsupportedError, match="average parameters between steps"), ddp.join():
            pass

    ranks(body)
