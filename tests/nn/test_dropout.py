from itertools import pairwise

import numpy as np
import pytest

from hpcpar.errors import ArgumentError, UnsupportedError
from hpcpar.nn import GPT, Ctx, Dropout, collect
from hpcpar.random import Key


def masks(layer, x, ctx):
    return layer.forward({}, x, ctx)[0]


def test_share_and_scale():
    y = masks(Dropout(0.25), np.ones((100, 100)), Ctx(train=True, key=Key(1)))
    assert set(np.unique(y)) == {0.0, 1 / 0.75}
    assert abs((y == 0).mean() - 0.25) < 0.02  # 4.6 standard deviations


def test_off_outside_training(rand):
    x = rand(3, 4)
    for layer, ctx in ((Dropout(0.9), Ctx()), (Dropout(0.0), Ctx(train=True))):
        y, saved = layer.forward({}, x, ctx)
        assert y is x
        assert layer.backward({}, saved, x, collect({})) is x


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_masks_do_not_depend_on_how_the_batch_is_cut(parts):
    layer, x = Dropout(0.5), np.ones((7, 3, 5))
    whole = masks(layer, x, Ctx(train=True, key=Key(4), step=6))
    cuts = np.linspace(0, 7, parts + 1).astype(int)
    pieces = [
        masks(layer, x[a:b], Ctx(train=True, key=Key(4), step=6, batch_start=int(a)))
        for a, b in pairwise(cuts)
    ]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_masks_differ_by_step_place_and_seed():
    layer, x = Dropout(0.5), np.ones((8, 64))
    base = Ctx(train=True, key=Key(4), step=6)
    others = (
        Ctx(train=True, key=Key(4), step=7),
        Ctx(train=True, key=Key(5), step=6),
        Ctx(train=True, key=Key(4), step=6, batch_start=8),
        base.child("blocks.1"),
    )
    for other in others:
        same = (masks(layer, x, base) == masks(layer, x, other)).mean()
        assert abs(same - 0.5) < 0.12  # 5 standard deviations
    np.testing.assert_array_equal(masks(layer, x, base), masks(layer, x, base))


def test_a_model_on_two_ranks_is_the_model_on_one(make_params, rand):
    model = GPT(layers=2, hidden=8, heads=2, vocab=7, seq=5, dropout=0.4)
    params, ids = make_params(model), np.arange(20).reshape(4, 5) % 7
    dy = rand(4, 5, 7)

    def run(rows):
        grads, ctx = {}, Ctx(train=True, key=Key(2), step=3, batch_start=rows.start)
        y, saved = model.forward(params, ids[rows], ctx)
        model.backward(params, saved, dy[rows], collect(grads))
        return y, grads

    y, grads = run(slice(0, 4))
    parts = [run(slice(0, 1)), run(slice(1, 4))]
    np.testing.assert_allclose(np.concatenate([p[0] for p in parts]), y, rtol=1e-12)
    for name, grad in grads.items():
        total = parts[0][1][name] + parts[1][1][name]
        np.testing.assert_allclose(total, grad, rtol=1e-9, atol=1e-11)


def test_what_is_refused():
    for rate in (-0.1, 1.0, float("nan")):
        with pytest.raises(ArgumentError, match="needs 0 <= rate < 1"):
            Dropout(rate)
    with pytest.raises(ArgumentError, match=r"ctx.key is None, layer 'mlp.drop' draws"):
        masks(Dropout(0.5), np.ones(2), Ctx(train=True, path="mlp.drop"))
    with pytest.raises(UnsupportedError, match=r"ctx.positions is set"):
        masks(Dropout(0.5), np.ones(2), Ctx(train=True, key=Key(0), positions=np.arange(2)))
