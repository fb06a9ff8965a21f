"""Forward values of the small layers against their formulas, written once more and plainly."""

import math

import numpy as np
import pytest

from hpcpar.nn import GELU, Block, Ctx, Embedding, LayerNorm, Linear, RMSNorm, SwiGLU, gelu_mlp
from hpcpar.nn.numeric import blocks


def forward(layer, params, x):
    return layer.forward(params, x, Ctx())[0]


def gelu(v):
    return 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))


def test_linear(make_params, rand):
    layer, x = Linear(3, 2), rand(4, 5, 3)
    params = make_params(layer)
    wanted = np.einsum("bti,oi->bto", x, params["weight"]) + params["bias"]
    np.testing.assert_allclose(forward(layer, params, x), wanted, rtol=1e-12)
    np.testing.assert_allclose(
        forward(layer, params, x.swapaxes(0, 1)), wanted.swapaxes(0, 1), rtol=1e-12
    )


def test_embedding(make_params):
    table = Embedding(4, 3)
    params = make_params(table)
    ids = np.array([[3, 0], [3, 1]], np.uint16)
    np.testing.assert_array_equal(forward(table, params, ids)[1, 0], params["weight"][3])


def test_layer_norm(make_params, rand):
    layer, x = LayerNorm(6, eps=0.1), 5 + 3 * rand(2, 3, 6)
    params = make_params(layer)
    hat = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.1)
    wanted = hat * params["weight"] + params["bias"]
    np.testing.assert_allclose(forward(layer, params, x), wanted, rtol=1e-11)


def test_rms_norm(make_params, rand):
    layer, x = RMSNorm(6, eps=0.1), 5 + 3 * rand(2, 3, 6)
    params = make_params(layer)
    wanted = x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.1) * params["weight"]
    np.testing.assert_allclose(forward(layer, params, x), wanted, rtol=1e-12)


def test_norm_of_a_large_offset_in_float32(rand):
    """A variance taken as E[x**2] - E[x]**2 would have no correct digit here."""
    layer, x = LayerNorm(64), 1e3 + rand(4, 64)
    wanted = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    params = {"weight": np.ones(64, np.float32), "bias": np.zeros(64, np.float32)}
    y = forward(layer, params, x.astype(np.float32))
    np.testing.assert_allclose(y, wanted, atol=1e-3)


def test_gelu_goldens():
    x = np.array([-1e4, -1.0, 0.0, 1.0, 1e4])
    wanted = [0, -0.158808009, 0, 0.841191991, 1e4]
    np.testing.assert_allclose(forward(GELU(), {}, x), wanted, rtol=1e-7, atol=1e-12)
    assert forward(GELU(), {}, np.float64(1.0) + np.zeros(())).shape == ()


def test_gelu_of_many_blocks(rand):
    x = rand(70_001, 3)
    np.testing.assert_allclose(forward(GELU(), {}, x), gelu(x), rtol=1e-12, atol=1e-15)


def test_gelu_mlp(make_params, rand):
    layer, x = gelu_mlp(3, 5), rand(2, 3)
    p = make_params(layer)
    inner = gelu(x @ p["up.weight"].T + p["up.bias"])
    wanted = inner @ p["down.weight"].T + p["down.bias"]
    np.testing.assert_allclose(forward(layer, p, x), wanted, rtol=1e-12)


@pytest.mark.parametrize("scale", [1, 1e3])
def test_swiglu(scale, make_params, rand):
    layer, x = SwiGLU(3, 5), scale * rand(2, 3)
    p = make_params(layer)
    gate = x @ p["gate.weight"].T
    silu = gate * np.exp(np.minimum(gate, 0)) / (1 + np.exp(-np.abs(gate)))
    wanted = (silu * (x @ p["up.weight"].T)) @ p["down.weight"].T
    np.testing.assert_allclose(forward(layer, p, x), wanted, rtol=1e-9)


def test_block_is_two_residual_branches(make_params, rand):
    block, x = Block(4, 2, 1, mlp="swiglu", norm="rms"), rand(2, 3, 4)
    params = make_params(block)

    def branch(*names):
        y = x
        for name in names:
            own = {n[len(name) + 1 :]: p for n, p in params.items() if n.startswith(name + ".")}
            y = forward(block.children[name], own, y)
        return y

    y = forward(block, params, x)
    x = x + branch("norm1", "attn")
    np.testing.assert_allclose(y, x + branch("norm2", "mlp"), rtol=1e-12)


def test_blocks_cut_everything_once():
    x = np.arange(200_000).reshape(1000, 200)
    parts = list(blocks(x, x[:, :1]))
    assert len(parts) > 2
    assert all(part.base is not None for part, _ in parts)
    np.testing.assert_array_equal(np.concatenate([part for part, _ in parts]), x)
    assert all(len(part) == len(column) for part, column in parts)
    assert len(list(blocks(x[:0]))) == 1
