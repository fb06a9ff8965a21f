"""Communication hooks: what they send, what comes back, and what they keep for later."""

import math

import numpy as np
import pytest

from hpcpar.debug import wire
from hpcpar.errors import ArgumentError, GroupFailed, MismatchError, RankFailed
from hpcpar.parallel import DDP, Cast, CommHook, Int8, LocalSGD, PowerSGD, TopK
from hpcpar.parallel.powersgd import powersgd_count
from hpcpar.parallel.quantize import dequantize, int8_nbytes, quantize
from hpcpar.parallel.topk import topk_nbytes

SHAPES = {"w": (40, 30), "b": (30,), "scalar": (), "empty": (0, 3), "v": (33, 2, 7)}
CAPS = {"first_bucket_nbytes": 500, "bucket_nbytes": 4000}


def make(group, *hooks, dtype=np.float32, shapes=SHAPES, **options):
    params = {name: np.zeros(shape, dtype) for name, shape in shapes.items()}
    return DDP(params, group=group, hooks=hooks, **(CAPS | options))


def gradients(seed, shapes=SHAPES):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def run(ddp, grads, weight=None):
    with ddp.step(weight) as step:
        for name, grad in grads.items():
            step.put(name, grad)
    return {name: grad.astype(np.float64) for name, grad in ddp.grads.items()}


def mean_of(size, step=0, shapes=SHAPES, weights=None):
    weights = np.ones(size) if weights is None else weights
    all_grads = [gradients((r, step), shapes) for r in range(size)]
    return {
        name: sum(w * g[name] for w, g in zip(weights, all_grads, strict=True)) / sum(weights)
        for name in shapes
    }


def same_everywhere(group, grads):
    flat = np.concatenate([g.reshape(-1) for g in grads.values()])
    assert (group.all_gather(flat[None]) == flat).all()


HOOKS = {
    "fp16": (lambda: [Cast("float16")], 2e-3),
    "bf16": (lambda: [Cast("bfloat16")], 2e-2),
    "int8": (lambda: [Int8(32)], 6e-2),
    "fp16 int8": (lambda: [Cast("float16"), Int8(64)], 6e-2),
    "all of top-k": (lambda: [TopK(1.0)], 1e-6),
    "top-k later": (lambda: [TopK(0.01, start_step=9)], 1e-6),
    "full rank": (lambda: [PowerSGD(14, start_step=0, min_rate=0.1)], 2.0),
    "full rank fp16": (lambda: [PowerSGD(30, start_step=0, min_rate=0.1), Cast("float16")], 2e-2),
}


@pytest.mark.sizes(1, 2, 3)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", HOOKS)
def test_the_mean_comes_back_as_exactly_as_the_hook_can(ranks, name, weighted):
    hooks, tolerance = HOOKS[name]

    def body(group):
        ddp = make(group, *hooks())
        weight = group.rank + 1.0 if weighted else None
        weights = np.arange(1.0, group.size + 1) if weighted else None
        for number in range(3):
            got = run(ddp, gradients((group.rank, number)), weight)
            if name != "full rank" or number == 0:
                wanted = mean_of(group.size, number, weights=weights)
                for key, grad in got.items():
                    assert grad.shape == SHAPES[key]
                    assert np.abs(grad - wanted[key]).max(initial=0) < tolerance, key
            same_everywhere(group, got)

    ranks(body)


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize("name", [n for n in HOOKS if n != "full rank"])
def test_micro_steps_are_weighted_once(ranks, name):
    hooks, tolerance = HOOKS[name]

    def body(group):
        ddp = make(group, *hooks())
        ones = {n: np.ones(s) for n, s in SHAPES.items()}
        with ddp.no_sync():
            run(ddp, ones, weight=3.0 * (group.rank + 1))
        got = run(ddp, {n: 5 * g for n, g in ones.items()}, weight=1.0 * (group.rank + 1))
        for key, grad in got.items():
            assert np.abs(grad - 2.0).max(initial=0) < 2 * tolerance, key

    ranks(body)


def traffic(group, ddp, verbs):
    with wire(group) as counted:
        run(ddp, gradients(0))
    report = 8 * 4  # of the step's end
    rows = [[r for r in rows if r.verb in verbs] for rows in counted.all_ranks()]
    sent = [sum(r.sent for r in rank) for rank in rows]
    return sum(sent) - (2 * (group.size - 1) * report if "all_reduce" in verbs else 0)


def settled(group, *hooks):
    """Return a DDP whose buckets have their last order."""
    ddp = make(group, *hooks)
    run(ddp, gradients(1))
    run(ddp, gradients(1))
    return ddp


@pytest.mark.sizes(2, 3, 4)
def test_bytes_are_those_of_the_formulas(ranks):
    def body(group):
        size = group.size
        ddp = settled(group, Cast("bfloat16"))
        count = sum(bucket.count for bucket in ddp.buckets)
        assert traffic(group, ddp, ["all_reduce"]) == 2 * (size - 1) * 2 * count
        ddp = settled(group, Int8(32))
        wanted = sum(int8_nbytes(b.count, 32, r, size) for b in ddp.buckets for r in range(size))
        assert traffic(group, ddp, ["all_to_all", "all_gather"]) == wanted
        ddp = settled(group, TopK(0.01))
        wanted = sum(size * (size - 1) * topk_nbytes(b.count, 4, 0.01) for b in ddp.buckets)
        assert traffic(group, ddp, ["all_gather"]) == wanted
        ddp = settled(group, PowerSGD(2, start_step=0))
        wanted = sum(2 * (size - 1) * 4 * powersgd_count(b, 2) for b in ddp.buckets)
        assert wanted < 2 * (size - 1) * 4 * count / 2
        assert traffic(group, ddp, ["all_reduce"]) == wanted

    ranks(body)


# --- int8 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 1000])
def test_quantization_is_off_by_half_a_scale_at_most(count):
    x = np.random.default_rng(count).standard_normal(count) * 10.0 ** np.arange(count).clip(0, 30)
    back = dequantize(quantize(x, 32), count)
    assert back.shape == (count,)
    for start in range(0, count, 32):
        block = x[start : start + 32]
        scale = np.abs(block).max() / 127
        assert (np.abs(back[start : start + 32] - block) <= scale * (0.5 + 1e-4)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_hidden(ranks, bad):
    x = np.zeros(96)
    x[40] = bad
    back = dequantize(quantize(x, 32), 96)
    assert not np.isfinite(back[32:64]).any()
    assert (back[:32] == 0).all()
    assert (back[64:] == 0).all()

    def body(group):
        for hook in (Int8(), TopK(0.1), Cast("float16"), PowerSGD(1, start_step=0)):
            grads = gradients(group.rank)
            if group.rank == 0:
                grads["w"][3, 3] = bad
            ddp = make(group, hook)
            with np.errstate(invalid="ignore"):
                assert not np.isfinite(run(ddp, grads)["w"]).all()
            later = run(ddp, gradients(group.rank))  # what was lost does not come back
            assert all(np.isfinite(grad).all() for grad in later.values())

    ranks(body)


# --- error feedback ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hook", [lambda: TopK(0.05), lambda: PowerSGD(1, start_step=2)], ids=["top-k", "PowerSGD"]
)
def test_what_arrives_and_what_is_kept_add_up_to_all_gradients(ranks, hook):
    def body(group):
        chosen = hook()
        ddp = make(group, chosen, dtype=np.float64)
        arrived = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        given = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        for number in range(8):
            got, wanted = run(ddp, gradients((group.rank, number))), mean_of(group.size, number)
            for name in SHAPES:
                arrived[name] += got[name]
                given[name] += wanted[name]
        for name, kept in chosen._residual._layout.views.items():
            rest = group.all_reduce(kept.copy(), "mean")
            assert np.allclose(arrived[name] + rest, given[name], rtol=0, atol=1e-12), name
        kept = chosen._residual._layout.views
        assert np.abs(kept["w"]).max() > 0.1
        assert (np.abs(kept["b"]).max() > 0) == (type(chosen) is TopK)

    ranks(body)


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize(
    "hook", [lambda: TopK(0.3), lambda: PowerSGD(1, start_step=0, min_rate=1)], ids=str
)
def test_what_is_kept_counts_by_its_own_weight(ranks, hook):
    """Weights that change from step to step, and a rank without samples now and then."""

    def body(group):
        ddp = DDP({"w": np.zeros((6, 5))}, group=group, hooks=[hook()])
        products, arrived = np.zeros((6, 5)), np.zeros((6, 5))
        for number in range(9):
            weights = [float((3 * r + number) % 4) for r in range(group.size)]
            grads = [gradients((r, number), {"w": (6, 5)})["w"] for r in range(group.size)]
            got = run(ddp, {"w": grads[group.rank]}, weights[group.rank])["w"]
            arrived += got * sum(weights)
            products += sum(w * g for w, g in zip(weights, grads, strict=True))
            same_everywhere(group, {"w": got})
        kept = ddp.hooks[0]._residual._layout.views["w"]
        assert np.allclose(arrived + group.all_reduce(kept.copy()), products, rtol=0, atol=1e-11)

    ranks(body)


@pytest.mark.sizes(2)
def test_matrices_of_low_rank_come_back_whole_whatever_the_weights(ranks):
    def body(group):
        ddp = make(group, PowerSGD(1, start_step=0), dtype=np.float64, shapes={"w": (40, 30)})
        for number in range(4):
            weight = 100.0 if (number + group.rank) % 2 else 1.0
            got = run(ddp, {"w": np.full((40, 30), group.rank + 1.0)}, weight)["w"]
            assert np.allclose(got, (101 + (100 if number % 2 == 0 else 1)) / 101)

    ranks(body)


@pytest.mark.sizes(2)
def test_a_step_that_failed_keeps_what_was_not_sent(ranks):
    def body(group):
        ddp = DDP({"w": np.zeros(4)}, group=group, hooks=[TopK(0.25)])
        grad = np.array([4.0, 3.0, 2.0, 1.0])
        with pytest.raises((KeyError, RankFailed)), ddp.step() as step:
            step.put("w", grad)
            if group.rank == 1:
                raise KeyError("again")
        total = run(ddp, {"w": grad})["w"]
        for _ in range(3):
            total += run(ddp, {"w": np.zeros(4)})["w"]
        assert total.tolist() == grad.tolist()

    ranks(body)


def corrected(grads, fraction, momentum, start_step):
    """Yield what deep gradient compression averages of ``grads[step][rank]``, one flat array."""
    moving, rest = np.zeros_like(grads[0]), np.zeros_like(grads[0])
    for number, own in enumerate(grads):
        moving = momentum * moving + own
        if number < start_step:
            yield moving.mean(axis=0)
            continue
        rest += moving
        count = math.ceil(fraction * rest.shape[1])
        sent = np.zeros_like(rest)
        for rank, row in enumerate(rest):
            places = np.argsort(-np.abs(row))[:count]
            sent[rank, places] = row[places]
            row[places] = moving[rank, places] = 0
        yield sent.mean(axis=0)


@pytest.mark.parametrize("weight", [None, 3.0])
def test_momentum_is_added_before_the_choice(ranks, weight):
    def body(group):
        random = np.random.default_rng(1)
        grads = random.standard_normal((9, group.size, 20))
        ddp = DDP(
            {"w": np.zeros((4, 5))}, group=group, hooks=[TopK(0.2, start_step=2, momentum=0.5)]
        )
        for own, mean in zip(grads, corrected(grads, 0.2, 0.5, 2), strict=True):
            got = run(ddp, {"w": own[group.rank].reshape(4, 5)}, weight)["w"]
            assert np.allclose(got.reshape(-1), mean, rtol=1e-12, atol=1e-14)
        state = ddp.state_dict()
        assert {"hooks.0.residual.w", "hooks.0.momentum.w"} <= state.keys()

    ranks(body)


@pytest.mark.sizes(2)
def test_momentum_outlives_failed_steps_and_what_is_not_finite(ranks):
    def body(group):
        ddp = DDP({"w": np.zeros(4)}, group=group, hooks=[TopK(0.25, momentum=0.5)])
        velocity = ddp.hooks[0]._velocity._layout.views["w"]
        run(ddp, {"w": np.array([4.0, 2.0, 1.0, 0.0])})
        before = velocity.tolist()
        assert before == [0.0, 2.0, 1.0, 0.0]
        with pytest.raises((KeyError, RankFailed)), ddp.step() as step:
            step.put("w", np.ones(4))
            if group.rank == 1:
                raise KeyError("again")
        assert velocity.tolist() == before
        run(ddp, {"w": np.array([0.0, math.nan, 8.0, 0.0])})
        assert np.isfinite(velocity).all()

    ranks(body)


@pytest.mark.sizes(2)
@pytest.mark.parametrize("hooks", [list, lambda: [TopK(1.0)], lambda: [Int8()],
                                   lambda: [Cast("float16"), TopK(1.0)]])  # fmt: skip
def test_weights_do_not_overflow_half_types(ranks, hooks):
    def body(group):
        kind = np.float32 if len(hooks()) == 2 else np.float16
        ddp = make(group, *hooks(), dtype=kind, shapes={"w": (9,)})
        got = run(ddp, {"w": np.full(9, 20.0)}, weight=4096)["w"]
        assert np.allclose(got, 20.0, rtol=1e-2)

    ranks(body)


def test_states_of_others_are_refused(ranks):
    def body(group):
        shapes = {"w": (40, 30)}
        ddp = make(group, PowerSGD(2, start_step=0), shapes=shapes)
        run(ddp, gradients(0, shapes))
        state = ddp.state_dict()
        with pytest.raises(ArgumentError, match=r"Q of 'w' has shape \(30, 2\), must be \(30, 4\)"):
            make(group, PowerSGD(4, start_step=0), shapes=shapes).load_state_dict(state)
        with pytest.raises(ArgumentError, match=r"residual of .* has shape nothing"):
            make(group, PowerSGD(2, start_step=0)).load_state_dict({"steps": 1})
        without = make(group, TopK(0.5)).state_dict()
        ddp = make(group, TopK(0.5, momentum=0.5))
        run(ddp, gradients(group.rank))
        before = {n: v.copy() for n, v in ddp.hooks[0]._residual._layout.views.items()}
        with pytest.raises(ArgumentError, match=r"momentum of .* has shape nothing"):
            ddp.load_state_dict(without)
        for name, kept in ddp.hooks[0]._residual._layout.views.items():
            assert np.array_equal(kept, before[name])

    ranks(body)


def descend(group, hook, steps=300):
    """Return the loss of a least-squares fit after some steps."""
    rng = np.random.default_rng(5)
    truth, data = rng.standard_normal((12, 10)), rng.standard_normal((4, 30, 12))
    ddp = DDP({"w": np.zeros((12, 10))}, group=group, hooks=[hook] if hook else [])
    xs = [data[r] for r in range(4) if r % group.size == group.rank]
    for _ in range(steps):
        with ddp.step(weight=len(xs)) as step:
            residuals = [x @ (ddp.params["w"] - truth) for x in xs]
            grads = [x.T @ r / len(x) for x, r in zip(xs, residuals, strict=True)]
            step.put("w", sum(grads) / len(grads))
        ddp.params["w"] -= 0.1 * ddp.grads["w"]
    return float(np.abs(ddp.params["w"] - truth).max())


@pytest.mark.sizes(2)
def test_feedback_and_a_warm_start_reach_the_goal(ranks):
    def body(group):
        assert descend(group, None) < 1e-6
        assert descend(group, PowerSGD(1, start_step=0, min_rate=1)) < 1e-4
        assert descend(group, TopK(0.1)) < 1e-4
        assert descend(group, TopK(0.1, momentum=0.5)) < 1e-4
        without = PowerSGD(1, start_step=0, min_rate=1, error_feedback=False, warm_start=False)
        assert descend(group, without) > 1e-2

    ranks(body)


def test_matrices_of_low_rank_come_back_whole(ranks):
    """If the mean has rank r or less, PowerSGD of rank r is exact."""

    def body(group):
        rng = np.random.default_rng(3)
        left, right = rng.standard_normal((40, 2)), rng.standard_normal((2, 30))
        wanted = left @ right * (group.size + 1) / 2
        hook = PowerSGD(2, start_step=0)
        ddp = make(group, hook, dtype=np.float64, shapes={"w": (40, 30)})
        got = run(ddp, {"w": left @ right * (group.rank + 1)})
        assert np.allclose(got["w"], wanted, rtol=1e-10, atol=1e-10)

    ranks(body)


# --- local SGD ---------------------------------------------------------------------------------


@pytest.mark.sizes(1, 2, 4)
@pytest.mark.parametrize("paired", [False, True])
def test_local_steps_are_averaged_when_they_are_due(ranks, paired):
    def body(group):
        part = group.split(group.rank // 2) if paired else None
        local = LocalSGD(period=3, start_step=2, group=part)
        ddp = make(group, local, shapes={"w": (3,)}, dtype=np.float64)
        mine = [group.rank + 1.0]
        if paired:
            mine = [r + 1.0 for r in range(group.size) if r // 2 == group.rank // 2]
        local_mean, mean = sum(mine) / len(mine), (group.size + 1) / 2
        expected = 0.0
        for number in range(8):
            got = run(ddp, {"w": np.full(3, group.rank + 1.0)})["w"]
            assert got.tolist() == [mean if number < 2 else local_mean] * 3
            ddp.params["w"] -= got
            assert local.average(ddp.params) == (number in (4, 7))
            expected = -mean * (number + 1)
            if number < 2 or number in (4, 7):
                assert np.allclose(ddp.params["w"], expected)
        if part is not None:
            part.close()

    ranks(body)


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make_hook", "message"),
    [
        (lambda: Cast("int8"), "Cast: dtype 'int8' must be float16"),
        (lambda: Int8(4), "Int8: block 4 must be at least 8"),
        (lambda: TopK(0.0), "TopK: fraction 0.0 must be above 0"),
        (lambda: TopK(1.5), "TopK: fraction 1.5"),
        (lambda: TopK(0.5, momentum=1.0), "TopK: .* momentum 1.0 in"),
        (lambda: PowerSGD(0), "PowerSGD: rank 0 must be at least 1"),
        (lambda: PowerSGD(1, start_step=-1), "start_step -1 at least 0"),
        (lambda: LocalSGD(0, start_step=0), "LocalSGD: period 0"),
    ],
)
def test_bad_settings_are_refused(make_hook, message):
    with pytest.raises(ArgumentError, match=message):
        make_hook()


def test_combinations_without_sense_are_refused(ranks):
    def body(group):
        with pytest.raises(ArgumentError, match="gradient 'w' is complex64, must be real"):
            make(group, Int8(), dtype=np.complex64, shapes={"w": (3,)})

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_other_hooks_on_other_ranks_are_a_mismatch(ranks):
    def body(group):
        hook = TopK(0.1) if group.rank == 0 else TopK(0.2)
        with pytest.raises(MismatchError, match=r"hooks.*TopK\(0.1, .*TopK\(0.2, "):
            make(group, hook)
        assert group.all_reduce(1) == group.size

    ranks(body)


class Failing(CommHook):
    """Fails on rank 1 in the second step, before or after its operation."""

    def __init__(self, early):
        self.early = early

    def fail(self, grad):
        if grad.step == 1 and grad.group.rank == 1:
            raise ZeroDivisionError("a bug")

    def reduce(self, x, grad, onward):
        if self.early:
            self.fail(grad)
        yield from onward(x, grad)
        self.fail(grad)
        return x


@pytest.mark.sizes(2, 3)
@pytest.mark.threads_only
@pytest.mark.parametrize("early", [True, False])
def test_a_hook_that_fails_on_one_rank_hangs_nobody(ranks, early):
    def body(group):
        ddp = make(group, Failing(early))
        run(ddp, gradients(0))
        expected = ZeroDivisionError if group.rank == 1 else (GroupFailed, RankFailed)
        with pytest.raises(expected):
            run(ddp, gradients(0))
            group.barrier()
        assert group.state == "failed"

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_a_step_that_failed_begins_no_second_round(ranks):
    """Ranks that went well must not wait for operations that the failed one never begins."""

    def body(group):
        ddp = make(group, PowerSGD(1, start_step=0))
        run(ddp, gradients(0))
        with pytest.raises((KeyError, RankFailed)), ddp.step() as step:
            for name, grad in gradients(1).items():
                step.put(name, grad)
                if group.rank == 1 and name == "b":
                    raise KeyError("a sample")
        got = run(ddp, gradients(group.rank))
        same_everywhere(group, got)

    ranks(body)
