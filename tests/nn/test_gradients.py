"""Every layer against finite differences, and the rules that all layers obey."""

import numpy as np
import pytest

from hpcpar.errors import ArgumentError
from hpcpar.nn import (
    GELU,
    GPT,
    Block,
    CausalSelfAttention,
    Ctx,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    Residual,
    RMSNorm,
    Sequential,
    SwiGLU,
    cast,
    collect,
    gelu_mlp,
    grad_fill,
)
from hpcpar.random import Key

LAYERS = {
    "linear": (Linear(4, 3), (2, 3, 4)),
    "linear, no bias": (Linear(4, 3, bias=False), (5, 4)),
    "one vector": (Linear(4, 3), (4,)),
    "layer norm": (LayerNorm(5), (2, 3, 5)),
    "rms norm": (RMSNorm(5), (2, 3, 5)),
    "gelu": (GELU(), (3, 4)),
    "gelu mlp": (gelu_mlp(3, 5), (2, 2, 3)),
    "swiglu": (SwiGLU(3, 4), (2, 2, 3)),
    "swiglu, bias": (SwiGLU(3, 4, bias=True), (2, 3)),
    "attention": (CausalSelfAttention(8, 2), (2, 3, 8)),
    "grouped attention": (CausalSelfAttention(8, 4, kv_heads=2, bias=False), (2, 3, 8)),
    "multi-query attention": (CausalSelfAttention(8, 4, kv_heads=1), (1, 4, 8)),
    "residual": (Residual(Linear(3, 3)), (2, 3)),
    "sequential": (Sequential([Linear(3, 4), GELU(), Linear(4, 2)]), (2, 3)),
    "empty sequential": (Sequential([]), (2, 3)),
    "block": (Block(4, 2, 1), (1, 3, 4)),
    "block, llama": (Block(4, 2, 2, mlp="swiglu", norm="rms"), (1, 2, 4)),
}
MODELS = {
    "tied": GPT(layers=1, hidden=4, heads=2, vocab=5, seq=4),
    "untied": GPT(
        layers=1, hidden=4, heads=1, vocab=5, seq=4, tied=False, mlp="swiglu", norm="rms"
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients(name, gradcheck, rand):
    layer, shape = LAYERS[name]
    gradcheck(layer, rand(*shape))


def test_gradients_through_a_mask(gradcheck, rand):
    ctx = Ctx(train=True, key=Key(3), step=2)
    gradcheck(Sequential([Linear(3, 4), Dropout(0.5), Linear(4, 2)]), rand(4, 3), ctx)


def test_gradients_at_given_positions(gradcheck, rand):
    ctx = Ctx(positions=np.array([2, 5, 6]))
    gradcheck(CausalSelfAttention(4, 2), rand(2, 3, 4), ctx)


def test_gradients_of_a_table_with_repeated_ids(gradcheck):
    grads = gradcheck(Embedding(6, 3), np.array([[4, 1, 4], [4, 0, 1]]))
    assert not grads["weight"][[2, 3, 5]].any()


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_models(name, gradcheck):
    gradcheck(MODELS[name], np.array([[4, 1, 4], [0, 0, 3]]))


def run_backward(layer, params, x, on_grad, ctx=Ctx()):  # noqa: B008
    y, saved = layer.forward(params, x, ctx)
    return layer.backward(params, saved, np.cos(y), on_grad), saved


def every_layer(rand):
    for layer, shape in LAYERS.values():
        yield layer, rand(*shape)
    for model in (*MODELS.values(), Embedding(5, 3)):
        yield model, np.array([[1, 4, 4, 0]])


def test_on_grad_is_called_once_per_parameter(rand, make_params):
    for layer, x in every_layer(rand):
        names = []
        run_backward(layer, make_params(layer), x, lambda name, fill, seen=names: seen.append(name))
        assert sorted(names) == sorted(layer.init(Key(0)))


def test_fill_gives_the_same_wherever_it_writes(rand, make_params):
    for layer, x in every_layer(rand):
        fills = {}
        params = make_params(layer)
        run_backward(layer, params, x, fills.__setitem__)
        for name, fill in fills.items():  # late: nothing may have been overwritten since
            shape = params[name].shape
            grad = fill()
            assert grad.dtype == np.float64
            flat = np.full(grad.size + 1, np.nan)
            assert fill(flat[1:].reshape(shape)) is not None
            np.testing.assert_array_equal(flat[1:].reshape(shape), grad)
            strided = np.full((*shape, 2), np.nan)[..., 0]
            fill(strided)
            np.testing.assert_array_equal(strided, grad)
            total = np.ones(shape)
            assert fill(total, add=True) is total
            np.testing.assert_allclose(total, grad + 1, rtol=1e-14, atol=1e-14)
            single = fill(np.empty(shape, np.float32))
            np.testing.assert_array_equal(single, grad.astype(np.float32))


def test_gradients_are_computed_in_the_bucket_itself():
    def compute(out):
        destinations.append(out)
        return np.zeros(6) if out is None else out

    destinations = []
    fill, bucket = grad_fill(compute, (6,), np.dtype(np.float64)), np.zeros(12)
    out = bucket[6:]
    assert fill(out) is out
    fill(bucket[::2])
    fill(bucket.astype(np.float32)[6:])
    assert [where is out for where in destinations] == [True, False, False]
    assert destinations[1:] == [None, None]


def test_fill_refuses(rand):
    fills = {}
    layer = Linear(4, 3)
    run_backward(layer, layer.init(Key(0)), rand(2, 4, dtype=np.float32), fills.__setitem__)
    with pytest.raises(ArgumentError, match=r"out has shape \(4, 3\), needs .* \(3, 4\)"):
        fills["weight"](np.empty((4, 3)))
    with pytest.raises(ArgumentError, match="add=True needs out"):
        fills["bias"](add=True)


def leaves(saved):
    if isinstance(saved, np.ndarray):
        yield saved
    elif isinstance(saved, (tuple, list)):
        for part in saved:
            yield from leaves(part)


def test_saved_holds_no_parameters(rand, make_params):
    for layer, x in every_layer(rand):
        params = make_params(layer)
        _, saved = run_backward(layer, params, x, lambda name, fill: None)
        for kept in leaves(saved):
            assert not any(np.shares_memory(kept, param) for param in params.values())


def test_arguments_are_not_written_to(rand, make_params):
    for layer, x in every_layer(rand):
        params = make_params(layer)
        for array in (*params.values(), x):
            array.flags.writeable = False
        y, saved = layer.forward(params, x, Ctx())
        for kept in (y, *leaves(saved)):
            kept.flags.writeable = False
        dy = np.ones_like(y)
        dy.flags.writeable = False
        layer.backward(params, saved, dy, collect({}))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtype_is_kept(dtype, rand, make_params):
    for layer, x in every_layer(rand):
        params, exact, grads, wanted = cast(make_params(layer), dtype), make_params(layer), {}, {}
        x_low = cast({"x": x}, dtype)["x"] if x.dtype.kind == "f" else x
        y, saved = layer.forward(params, x_low, Ctx())
        y_exact, saved_exact = layer.forward(exact, x, Ctx())
        dx = layer.backward(params, saved, (y_exact * 0 + 1).astype(y.dtype), collect(grads))
        layer.backward(exact, saved_exact, y_exact * 0 + 1, collect(wanted))
        assert {a.dtype.name for a in (y, *grads.values())} == {dtype}
        assert dx is None or dx.dtype == y.dtype
        rtol = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 1.5e-1}[dtype]
        scale = max((np.abs(grad).max() for grad in wanted.values()), default=1)
        for name, grad in grads.items():
            np.testing.assert_allclose(grad.astype(float), wanted[name], atol=rtol * scale, rtol=0)
        np.testing.assert_allclose(y.astype(float), y_exact, atol=rtol * np.abs(y_exact).max())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_nothing_computes_in_float64(dtype, rand, make_params):
    for layer, x in every_layer(rand):
        params = cast(make_params(layer), dtype)
        x_low = cast({"x": x}, dtype)["x"] if x.dtype.kind == "f" else x
        _, saved = layer.forward(params, x_low, Ctx())
        assert not any(kept.dtype == np.float64 for kept in leaves(saved))


def test_no_tokens(rand, make_params):
    for layer, x in every_layer(rand):
        if x.ndim > 1:
            params, grads = make_params(layer), {}
            y, saved = layer.forward(params, x[:0], Ctx())
            dx = layer.backward(params, saved, y, collect(grads))
            assert y.shape[0] == 0
            assert dx is None or dx.shape == x[:0].shape
            assert not any(grad.any() for grad in grads.values())
