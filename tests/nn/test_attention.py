import numpy as np
import pytest

from hpcpar.errors import ArgumentError, UnsupportedError
from hpcpar.nn import CausalSelfAttention, Ctx, Linear
from hpcpar.nn.attention import _rope_tables, rotate


def forward(layer, params, x, ctx=Ctx()):  # noqa: B008
    return layer.forward(params, x, ctx)[0]


def test_against_a_plain_loop(make_params, rand):
    layer, x = CausalSelfAttention(8, 2), rand(2, 5, 8)
    params = make_params(layer)
    projected = {n: x @ params[f"{n}.weight"].T + params[f"{n}.bias"] for n in "qkv"}
    wanted = np.zeros_like(x)
    for b, head, t in np.ndindex(2, 2, 5):
        columns = slice(4 * head, 4 * head + 4)
        query = turn(projected["q"][b, t, columns], t)
        scores = [query @ turn(projected["k"][b, s, columns], s) / 2 for s in range(t + 1)]
        weights = np.exp(scores) / np.exp(scores).sum()
        wanted[b, t, columns] = weights @ projected["v"][b, : t + 1, columns]
    wanted = wanted @ params["out.weight"].T + params["out.bias"]
    np.testing.assert_allclose(forward(layer, params, x), wanted, rtol=1e-12)


def turn(pairs, position):
    """RoFormer's rotation of one head of width 4: pairs (0, 2) and (1, 3), rates 1 and 1/100."""
    turned = (pairs[:2] + 1j * pairs[2:]) * np.exp(1j * position * np.array([1, 0.01]))
    return np.concatenate([turned.real, turned.imag])


def test_grouped_heads_are_repeated_heads(make_params, rand):
    grouped, full = CausalSelfAttention(12, 6, kv_heads=2), CausalSelfAttention(12, 6)
    params, x = make_params(grouped), rand(2, 4, 12)
    repeated = dict(params)
    for name in ("k.weight", "k.bias", "v.weight", "v.bias"):
        heads = params[name].reshape(2, 2, -1)  # 2 heads of width 2
        repeated[name] = np.repeat(heads, 3, axis=0).reshape(12, *params[name].shape[1:])
    np.testing.assert_allclose(
        forward(grouped, params, x), forward(full, repeated, x), rtol=1e-12, atol=1e-14
    )


def test_scores_depend_on_relative_positions_only(make_params, rand):
    layer, x = CausalSelfAttention(8, 2), rand(2, 4, 8)
    params = make_params(layer)
    near = forward(layer, params, x, Ctx(positions=np.array([0, 1, 3, 4])))
    far = forward(layer, params, x, Ctx(positions=np.array([1000, 1001, 1003, 1004])))
    other = forward(layer, params, x, Ctx(positions=np.array([0, 1, 2, 4])))
    np.testing.assert_allclose(near, far, rtol=1e-9)
    assert np.abs(near - other).max() > 1e-4


def test_default_positions_count_from_zero(make_params, rand):
    layer, x = CausalSelfAttention(4, 1), rand(1, 3, 4)
    params = make_params(layer)
    given = forward(layer, params, x, Ctx(positions=np.arange(3)))
    np.testing.assert_array_equal(given, forward(layer, params, x))


def test_rotation_keeps_lengths_and_turns_back(rand):
    x = rand(1, 2, 3, 6)
    cos, sin = _rope_tables(np, np.array([0, 7, 90]), 6, 10000.0, x.dtype)
    turned = rotate(x, cos, sin)
    np.testing.assert_array_equal(turned[:, :, 0], x[:, :, 0])
    np.testing.assert_allclose((turned**2).sum(-1), (x**2).sum(-1), rtol=1e-12)
    np.testing.assert_allclose(rotate(turned, cos, -sin), x, rtol=1e-12)


def test_no_token_sees_a_later_one(make_params, rand):
    layer, x = CausalSelfAttention(8, 2, kv_heads=1), rand(1, 5, 8)
    params = make_params(layer)
    before = forward(layer, params, x)
    x[:, 3:] = 99.0
    after = forward(layer, params, x)
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] != after[:, 3:]).all()


def test_large_scores_stay_finite(make_params, rand):
    layer = CausalSelfAttention(8, 2)
    y = forward(layer, make_params(layer), 1e4 * rand(1, 4, 8))
    assert np.isfinite(y).all()


def test_wrapped_projections_may_hold_a_part_of_the_heads(make_params, rand):
    whole = CausalSelfAttention(8, 4, bias=False)
    params, x = make_params(whole), rand(2, 3, 8)
    part = CausalSelfAttention(8, 4, bias=False)
    part.children = {
        "q": Linear(8, 4, bias=False),
        "k": Linear(8, 4, bias=False),
        "v": Linear(8, 4, bias=False),
        "out": Linear(4, 8, bias=False),
    }
    total = 0
    for rows in (slice(0, 4), slice(4, 8)):
        local = {f"{n}.weight": params[f"{n}.weight"][rows] for n in "qkv"}
        local["out.weight"] = params["out.weight"][:, rows]
        total = total + forward(part, local, x)
    np.testing.assert_allclose(total, forward(whole, params, x), rtol=1e-10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 3}, "heads is 3, needs a divisor of width 8"),
        ({"heads": 0}, "heads is 0"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads is 3, needs a divisor of heads 4"),
        ({"heads": 8}, "head width is 8 / 8 = 1, needs an even number"),
    ],
)
def test_heads_that_do_not_fit(settings, message):
    with pytest.raises(ArgumentError, match=message):
        CausalSelfAttention(8, **settings)


def test_inputs_that_do_not_fit(make_params, rand):
    layer = CausalSelfAttention(8, 2)
    params = make_params(layer)
    with pytest.raises(ArgumentError, match=r"x has shape \(3, 8\), needs \(batch, tokens, width"):
        forward(layer, params, rand(3, 8))
    with pytest.raises(ArgumentError, match=r"forward \(q\): x has shape .* needs \(..., 8\)"):
        forward(layer, params, rand(1, 3, 7))
    with pytest.raises(ArgumentError, match=r"ctx.positions has shape \(2,\), needs \(3,\)"):
        forward(layer, params, rand(1, 3, 8), Ctx(positions=np.arange(2)))
    with pytest.raises(UnsupportedError, match="x has dtype float32, needs float64 as the param"):
        forward(layer, params, rand(1, 3, 8, dtype=np.float32))
