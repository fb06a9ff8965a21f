"""Training against one process: gradients and parameters, for every policy and exact hook."""

import numpy as np
import pytest

from hpcpar.nn import GPT, Ctx, cast, collect, cross_entropy, cross_entropy_backward
from hpcpar.parallel import DDP, LocalSGD, PowerSGD, TopK
from hpcpar.random import Key

STEPS, ROWS = 4, 7
MODEL = GPT(layers=1, hidden=8, heads=2, vocab=11, seq=4)
IDS = np.arange(STEPS * ROWS * 5).reshape(STEPS, ROWS, 5) ** 2 % 11
TINY = {"first_bucket_nbytes": 1, "bucket_nbytes": 700}

WAYS = {
    "plain": dict,
    "zero": lambda: {"unused": "zero"},
    "skip": lambda: {"unused": "skip"},
    "static": lambda: {"static": True},
    "static, skip": lambda: {"static": True, "unused": "skip"},
    "all of top-k": lambda: {"hooks": [TopK(1.0)]},
    "PowerSGD later": lambda: {"hooks": [PowerSGD(start_step=STEPS)]},
    "PowerSGD, full rank": lambda: {"hooks": [PowerSGD(11, start_step=0, min_rate=0.01)]},
    "local SGD later": lambda: {"hooks": [LocalSGD(2, start_step=STEPS)]},
}


def backward(params, rows, on_grad):
    """Return what the gradients are means over; a rank may have no rows."""
    logits, saved = MODEL.forward(params, rows[:, :4], Ctx())
    _, kept = cross_entropy(logits, rows[:, 1:])
    MODEL.backward(params, saved, cross_entropy_backward(kept), on_grad)


def one_process():
    params = cast(MODEL.init(Key(1)), "float64")
    history = []
    for rows in IDS:
        grads = {}
        backward(params, rows, collect(grads))
        for name, grad in grads.items():
            params[name] -= 0.5 * grad
        history.append(grads)
    return params, history


@pytest.mark.parametrize("micro_steps", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_training_is_that_of_one_process(ranks, way, micro_steps):
    final, history = one_process()
    cut = "full rank" in way  # its matrices go through a product of floats
    tolerance = 1e-9 if cut else 1e-12

    def body(group):
        params = cast(MODEL.init(Key(1)), "float64")
        ddp = DDP(params, group=group, **TINY, **WAYS[way]())
        for rows, expected in zip(IDS, history, strict=True):
            mine = np.array_split(rows, group.size)[group.rank]
            parts = np.array_split(mine, micro_steps)
            for part in parts[:-1]:
                with ddp.no_sync(), ddp.step(weight=len(part)) as step:
                    backward(ddp.params, part, step.on_grad)
            with ddp.step(weight=len(parts[-1])) as step:
                backward(ddp.params, parts[-1], step.on_grad)
            assert ddp.grads.keys() == expected.keys()
            for name, grad in ddp.grads.items():
                assert np.abs(grad - expected[name]).max() < tolerance, name
                ddp.params[name] -= 0.5 * grad
        for name, param in ddp.params.items():
            assert np.abs(param - final[name]).max() < tolerance, name

    ranks(body)
