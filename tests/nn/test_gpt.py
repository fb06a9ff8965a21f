import math

import numpy as np
import pytest

from hpcpar.errors import ArgumentError
from hpcpar.nn import GPT, Ctx, cast, collect, cross_entropy, cross_entropy_backward
from hpcpar.optim import AdamW
from hpcpar.random import Key

SIZES = {"layers": 2, "hidden": 8, "heads": 2, "vocab": 7, "seq": 6}
KINDS = [
    {},
    {"mlp": "swiglu", "norm": "rms", "kv_heads": 1, "tied": False},
    {"dropout": 0.1, "mlp": "swiglu"},
]


def step(model, params, ids, grads, ctx=Ctx(train=True, key=Key(3))):  # noqa: B008
    logits, saved = model.forward(params, ids[:, :-1], ctx)
    loss, kept = cross_entropy(logits, ids[:, 1:])
    model.backward(params, saved, cross_entropy_backward(kept), collect(grads))
    return float(loss)


def test_names_and_shapes():
    model = GPT(layers=1, hidden=6, heads=3, kv_heads=1, vocab=5, seq=4, norm="rms", mlp="swiglu")
    shapes = {name: param.shape for name, param in model.init(Key(0)).items()}
    assert shapes == {
        "embed.weight": (5, 6),
        "blocks.0.norm1.weight": (6,),
        "blocks.0.attn.q.weight": (6, 6),
        "blocks.0.attn.k.weight": (2, 6),
        "blocks.0.attn.v.weight": (2, 6),
        "blocks.0.attn.out.weight": (6, 6),
        "blocks.0.norm2.weight": (6,),
        "blocks.0.mlp.gate.weight": (32, 6),
        "blocks.0.mlp.up.weight": (32, 6),
        "blocks.0.mlp.down.weight": (6, 32),
        "norm.weight": (6,),
    }


def test_number_of_parameters_of_gpt2_small():
    """12 layers, 768 wide: 124,439,808 with 1024 learned positions, which rotary ones replace."""
    c, layers, vocab = 768, 12, 50257
    block = 12 * c * c + 13 * c
    small = GPT(layers=2, hidden=c, heads=12, vocab=3, seq=8).init(Key(0))
    per_layer = sum(p.size for n, p in small.items() if n.startswith("blocks.1."))
    assert per_layer == block
    assert vocab * c + 1024 * c + layers * per_layer + 2 * c == 124_439_808


def test_initial_scales():
    params = GPT(layers=8, hidden=64, heads=2, vocab=100, seq=8).init(Key(0))
    residual = 0.02 / math.sqrt(16)
    for name, param in params.items():
        assert param.dtype == np.float32
        if name.endswith(("out.weight", "down.weight")):
            assert param.std() == pytest.approx(residual, rel=0.1)
        elif param.ndim == 2:
            assert param.std() == pytest.approx(0.02, rel=0.1)
        else:
            assert set(np.unique(param)) <= {0.0, 1.0}


def test_initial_loss_is_that_of_guessing():
    model = GPT(layers=2, hidden=32, heads=2, vocab=64, seq=16)
    ids = np.random.default_rng(0).integers(0, 64, (4, 17))
    loss = step(model, model.init(Key(1)), ids, {}, Ctx())
    assert loss == pytest.approx(math.log(64), rel=0.02)


def test_tied_gradient_is_the_sum_of_both_uses(make_params):
    tied, untied = GPT(**SIZES), GPT(**SIZES, tied=False)
    params = make_params(tied)
    ids = np.array([[1, 2, 1, 6, 1], [0, 0, 5, 2, 3]])
    grads, separate = {}, {}
    loss = step(tied, params, ids, grads)
    wanted = step(untied, {**params, "head.weight": params["embed.weight"]}, ids, separate)
    assert loss == wanted
    total = separate["embed.weight"] + separate.pop("head.weight")
    np.testing.assert_allclose(grads["embed.weight"], total, rtol=1e-13, atol=1e-16)
    for name in separate.keys() - {"embed.weight"}:
        np.testing.assert_array_equal(grads[name], separate[name])


def test_gradients_arrive_from_the_last_layer_to_the_first(make_params):
    model, order = GPT(**SIZES), []
    params = make_params(model)
    y, saved = model.forward(params, np.array([[1, 2]]), Ctx())
    model.backward(params, saved, y, lambda name, fill: order.append(name.split(".")[0:2]))
    blocks = [int(part[1]) for part in order if part[0] == "blocks"]
    assert blocks == sorted(blocks, reverse=True)
    assert order[0][0] == "norm"
    assert order[-1] == ["embed", "weight"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_overfits_one_batch(kind, dtype):
    model = GPT(**{**SIZES, "hidden": 32}, **kind)
    params = cast(model.init(Key(0)), dtype)
    ids = np.array([[1, 5, 2, 6, 3, 0, 4], [2, 3, 0, 3, 1, 1, 4]])
    adamw = AdamW(weight_decay=0.0)
    state = adamw.init(params)
    for _ in range(60):
        grads = {}
        loss = step(model, params, ids, grads)
        adamw.update(params, grads, state, lr=0.01)
    assert loss < 0.1  # guessing costs 1.9
    if not kind:
        wanted = ids[:, :7]
        made = model.generate(params, ids[:, :1], 6, temperature=0)
        np.testing.assert_array_equal(made, wanted)


def test_two_runs_have_the_same_bits():
    model = GPT(**SIZES, dropout=0.3)
    params = model.init(Key(0))
    ids = np.arange(12).reshape(2, 6) % 7
    runs = [{}, {}]
    losses = [step(model, params, ids, grads) for grads in runs]
    assert losses[0] == losses[1]
    for name in params:
        np.testing.assert_array_equal(runs[0][name], runs[1][name])


def test_generation_is_a_function_of_its_key(make_params):
    model = GPT(**SIZES)
    params, prompt = make_params(model), np.array([[1, 2], [3, 4], [1, 2]], np.int32)
    made = model.generate(params, prompt, 9, key=Key(1))  # beyond seq: the window moves on
    assert (made.shape, made.dtype) == ((3, 11), np.int32)
    np.testing.assert_array_equal(made[:, :2], prompt)
    np.testing.assert_array_equal(made, model.generate(params, prompt, 9, key=Key(1)))
    assert (made != model.generate(params, prompt, 9, key=Key(2))).any()
    again = model.generate(params, made[:, :5], 6, key=Key(1))  # continued where it stopped
    np.testing.assert_array_equal(again, made)
    assert (made[0] != made[2]).any()  # samples with the same prompt draw separately
    np.testing.assert_array_equal(model.generate(params, prompt, 0, key=Key(1)), prompt)


def test_every_position_draws_anew():
    model = GPT(**SIZES)
    params = {name: 0 * param for name, param in model.init(Key(0)).items()}  # equal odds
    made = model.generate(params, np.zeros((1, 1), int), 50, key=Key(0))[0, 1:]
    assert set(made) == set(range(7))


def test_samples_follow_the_distribution():
    model = GPT(layers=1, hidden=4, heads=1, vocab=3, seq=2)
    params = model.init(Key(0))
    prompt = np.zeros((6000, 1), int)
    logits = 40 * model.forward(params, prompt[:1], Ctx())[0][0, 0].astype(float)
    wanted = np.exp(logits) / np.exp(logits).sum()
    made = model.generate(params, prompt, 1, temperature=1 / 40, key=Key(1))[:, 1]
    share = np.bincount(made, minlength=3) / 6000
    np.testing.assert_allclose(share, wanted, atol=0.03)  # 4.6 standard deviations


def test_low_temperature_is_greedy(make_params):
    model = GPT(**SIZES)
    params, prompt = make_params(model), np.array([[1], [3]])
    cold = model.generate(params, prompt, 4, temperature=1e-6, key=Key(0))
    np.testing.assert_array_equal(cold, model.generate(params, prompt, 4, temperature=0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers is 0, needs at least 1"),
        ({"vocab": -1}, "vocab is -1"),
        ({"heads": 3}, "heads is 3, needs a divisor of width 8"),
        ({"mlp": "relu"}, "mlp is 'relu', needs 'gelu' or 'swiglu'"),
        ({"norm": "batch"}, "norm is 'batch', needs 'layer' or 'rms'"),
        ({"dropout": 1}, "rate is 1"),
    ],
)
def test_models_that_cannot_be(change, message):
    with pytest.raises(ArgumentError, match=message):
        GPT(**{**SIZES, **change})


def test_inputs_that_do_not_fit():
    model = GPT(**SIZES)
    params = model.init(Key(0))
    with pytest.raises(
        ArgumentError, match=r"x has shape \(1, 7\), needs \(batch, tokens <= seq 6"
    ):
        model.forward(params, np.zeros((1, 7), int), Ctx())
    with pytest.raises(ArgumentError, match=r"Embedding.forward \(embed\): x holds 7, needs ids"):
        model.forward(params, np.full((1, 2), 7), Ctx())
    del params["embed.weight"]
    with pytest.raises(ArgumentError, match=r"params has no 'embed.weight'"):
        model.forward(params, np.zeros((1, 2), int), Ctx())


def test_generation_refuses():
    model = GPT(**SIZES)
    params, prompt = model.init(Key(0)), np.array([[1]])
    with pytest.raises(ArgumentError, match=r"key is None with temperature 1.0"):
        model.generate(params, prompt, 1)
    with pytest.raises(ArgumentError, match="temperature is -1"):
        model.generate(params, prompt, 1, temperature=-1)
    with pytest.raises(ArgumentError, match="count is -2"):
        model.generate(params, prompt, -2, temperature=0)
    with pytest.raises(ArgumentError, match=r"ids has shape \(1, 0\), needs \(batch, tokens >= 1"):
        model.generate(params, prompt[:, :0], 1, temperature=0)
