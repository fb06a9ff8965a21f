"""Optimizers against hand-written steps of the papers' equations."""

import math

import numpy as np
import pytest

from hpcpar.errors import ArgumentError
from hpcpar.optim import SGD, AdamW

BIG = 70_001  # several blocks, and a remainder


def draw(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def run(optimizer, params, steps, lr=0.1, seed=10):
    state = optimizer.init(params)
    for step in range(steps):
        grads = {n: draw(*p.shape, seed=seed + step, dtype=p.dtype) for n, p in params.items()}
        optimizer.update(params, grads, state, lr=lr)
    return state


def test_sgd_golden():
    """w = 1, g = 2 w each time, lr = 1/8, momentum 1/2, weight decay 1: exact in binary.

    Plain: w 1 -> 1 - 3/8 = 0.625 -> 0.390625. Momentum: buf 3, w 0.625; buf 1.5 + 1.875 = 3.375,
    w 0.203125. Nesterov: buf 3, g + buf / 2 = 4.5, w 0.4375; g 1.3125, buf 2.8125,
    g + buf / 2 = 2.71875, w 0.09765625.
    """
    goldens = [
        (SGD(weight_decay=1.0), [0.625, 0.390625]),
        (SGD(momentum=0.5, weight_decay=1.0), [0.625, 0.203125]),
        (SGD(momentum=0.5, nesterov=True, weight_decay=1.0), [0.4375, 0.09765625]),
        (SGD(), [0.75, 0.5625]),
    ]
    for optimizer, wanted in goldens:
        params = {"w": np.array([1.0])}
        state, seen = optimizer.init(params), []
        for _ in wanted:
            optimizer.update(params, {"w": 2 * params["w"]}, state, lr=0.125)
            seen.append(params["w"].item())
        assert seen == wanted


def test_adamw_golden():
    """Algorithm 2 by hand for w = 1, g = 1/2 then -1/4, lr = 0.1, decay 0.1, betas (0.5, 0.75).

    Step 1: w (1 - 0.01) = 0.99; mhat = 0.5, vhat = 0.25: w = 0.99 - 0.1 = 0.89.
    Step 2: w 0.8811; m = 0.125 - 0.125 = 0, so w = 0.8811. Step 3, g = 1: w 0.872289;
    m = 0.5, mhat = 0.5 / 0.875 = 4/7; v = 0.0625, 0.0625, 0.046875 + 0.25 = 0.296875,
    vhat = 0.296875 / 0.578125; w = 0.872289 - 0.1 * 0.571428571... / 0.716601...
    """
    optimizer = AdamW(beta1=0.5, beta2=0.75, eps=1e-300, weight_decay=0.1)
    params = {"w": np.array([1.0])}
    state, seen = optimizer.init(params), []
    for grad in (0.5, -0.25, 1.0):
        optimizer.update(params, {"w": np.array([grad])}, state, lr=0.1)
        seen.append(params["w"].item())
    np.testing.assert_allclose(seen, [0.89, 0.8811, 0.792547204008645], rtol=1e-14)
    assert state["m.w"].item() == 0.5
    assert state["v.w"].item() == 0.296875
    assert state["step.w"] == 3


@pytest.mark.parametrize("shape", [(BIG,), (3, 50), (), (0,)])
def test_adamw_against_the_equations(shape):
    optimizer = AdamW(weight_decay=0.3, eps=1e-3)
    params = {"w": draw(*shape)}
    w, m, v = params["w"].copy(), 0.0, 0.0
    run(optimizer, params, 3)
    for t in (1, 2, 3):
        g = draw(*shape, seed=9 + t)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        mhat, vhat = m / (1 - 0.9**t), v / (1 - 0.999**t)
        w = w - 0.1 * (mhat / (np.sqrt(vhat) + 1e-3) + 0.3 * w)
    np.testing.assert_allclose(params["w"], w, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_against_the_equations(nesterov):
    params = {"w": draw(BIG)}
    w, buf = params["w"].copy(), 0.0
    run(SGD(momentum=0.9, nesterov=nesterov, weight_decay=0.2), params, 3)
    for t in range(3):
        g = draw(BIG, seed=10 + t) + 0.2 * w
        buf = 0.9 * buf + g
        w = w - 0.1 * (g + 0.9 * buf if nesterov else buf)
    np.testing.assert_allclose(params["w"], w, rtol=1e-11, atol=1e-14)


OPTIMIZERS = [SGD(), SGD(momentum=0.9, weight_decay=0.1), AdamW(weight_decay=0.1)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_any_cut_of_a_parameter_is_updated_alike(optimizer):
    assert optimizer.needs == "element"
    whole, cut = {"w": draw(BIG)}, draw(BIG)
    run(optimizer, whole, 1)
    for rows in (slice(0, 11), slice(11, 65_000), slice(65_000, BIG)):
        part = {"w": cut[rows]}
        grads = {"w": draw(BIG, seed=10)[rows]}
        optimizer.update(part, grads, optimizer.init(part), lr=0.1)
    np.testing.assert_array_equal(cut, whole["w"])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_any_layout_is_updated_in_place(optimizer):
    plain = {"w": draw(6, 4)}
    wide = np.full((6, 8), 9.0)
    wide[:, ::2] = plain["w"]
    views = {"w": wide[:, ::2]}
    run(optimizer, plain, 2)
    run(optimizer, views, 2)
    np.testing.assert_array_equal(wide[:, ::2], plain["w"])
    assert (wide[:, 1::2] == 9).all()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gradients_are_left_alone(optimizer):
    params, grads = {"w": draw(5)}, {"w": draw(5, seed=1)}
    optimizer.update(params, grads, optimizer.init(params), lr=0.1)
    np.testing.assert_array_equal(grads["w"], draw(5, seed=1))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_updated_through_float32(optimizer, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    half = np.dtype(getattr(ml_dtypes, dtype, dtype))
    params = {"w": draw(BIG).astype(half)}
    exact = {"w": params["w"].astype(np.float32)}
    state, exact_state = optimizer.init(params), optimizer.init(exact)
    for step in range(20):  # steps far below the half type's spacing must add up
        grads = {"w": draw(BIG, seed=step).astype(half)}
        if step % 2:  # float32 gradients are taken, too
            grads["w"] = grads["w"].astype(np.float32)
        optimizer.update(params, grads, state, lr=1e-4)
        optimizer.update(exact, {"w": grads["w"].astype(np.float32)}, exact_state, lr=1e-4)
    assert params["w"].dtype == half
    np.testing.assert_array_equal(state["master.w"], exact["w"])
    np.testing.assert_array_equal(params["w"], exact["w"].astype(half))


def test_float32_stays_float32():
    params = {"w": draw(7, dtype=np.float32)}
    state = run(AdamW(), params, 2)
    assert {a.dtype.name for n, a in state.items() if n[:4] != "step"} == {"float32"}


def test_names_that_do_not_decay():
    optimizer = AdamW(weight_decay=0.5, no_decay=("*.bias", "*norm*"))
    names = ("up.weight", "up.bias", "blocks.0.norm1.weight")
    assert [optimizer.decays(name) for name in names] == [True, False, False]
    params = {name: np.ones(1) for name in names}
    optimizer.update(params, {n: np.zeros(1) for n in names}, optimizer.init(params), lr=0.5)
    assert [params[name].item() for name in names] == [0.75, 1, 1]


def test_state_is_flat_and_joins():
    optimizer = AdamW()
    params = {"a": np.ones(2), "b": np.ones((3, 1), np.float16)}
    state = optimizer.init(params)
    assert list(state) == ["step.a", "m.a", "v.a", "step.b", "master.b", "m.b", "v.b"]
    assert SGD().init(params).keys() == {"step.a", "step.b", "master.b"}
    a = {"a": params["a"]}
    optimizer.update(a, {"a": np.ones(2)}, state, lr=0.1)  # b is frozen
    late = {"c": np.ones(1)}
    state.update(optimizer.init(late))
    optimizer.update({**a, **late}, {"a": np.ones(2), "c": np.ones(1)}, state, lr=0.1)
    assert (state["step.a"], state["step.b"], state["step.c"]) == (2, 0, 1)
    first = {"c": np.ones(1)}  # c moved as in a first step
    optimizer.update(first, {"c": np.ones(1)}, optimizer.init(first), lr=0.1)
    assert late["c"] == first["c"]


def test_updates_continue_from_a_copied_state():
    optimizer = AdamW()
    straight, copied = {"w": draw(9)}, {"w": draw(9)}
    run(optimizer, straight, 2)
    state = run(optimizer, copied, 1)
    again = {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in state.items()}
    optimizer.update(copied, {"w": draw(9, seed=11)}, again, lr=0.1)
    np.testing.assert_array_equal(copied["w"], straight["w"])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_calls_that_do_not_fit_change_nothing(optimizer):
    params = {"a": np.ones(2), "b": np.ones((2, 3))}
    good = {"a": np.ones(2), "b": np.ones((2, 3))}
    state = optimizer.init(params)
    calls = [
        ({"a": good["a"]}, state, 0.1, r"grads has no 'b' \(1 of 2 parameters have no gradient"),
        ({**good, "c": good["a"]}, state, 0.1, r"grads has 'c', which is no parameter"),
        ({**good, "b": np.ones((3, 2))}, state, 0.1, r"gradient 'b' has shape \(3, 2\), needs"),
        ({**good, "b": np.ones((2, 3), "f4")}, state, 0.1, "gradient 'b' has dtype float32, needs"),
        (good, {}, 0.1, "state has no 'step.a'. Add the parameter's state"),
        (good, state, -1.0, "lr is -1.0, needs a finite number"),
        (good, state, math.nan, "lr is nan"),
    ]
    for grads, given, lr, message in calls:
        with pytest.raises(ArgumentError, match=message):
            optimizer.update(params, grads, given, lr=lr)
        assert (params["a"] == 1).all()
        assert state["step.a"] == 0


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (SGD, {"momentum": 1.0}, "momentum is 1.0, needs 0 <= momentum < 1"),
        (SGD, {"weight_decay": -1}, "weight_decay is -1, needs 0 or more"),
        (SGD, {"nesterov": True}, "nesterov is True with momentum 0.0"),
        (AdamW, {"beta1": 1.0}, "beta1 is 1.0"),
        (AdamW, {"beta2": -0.1}, "beta2 is -0.1"),
        (AdamW, {"eps": 0.0}, "eps is 0.0, needs a number above 0"),
        (AdamW, {"weight_decay": math.nan}, "weight_decay is nan"),
    ],
)
def test_settings_out_of_range(kind, settings, message):
    with pytest.raises(ArgumentError, match=message):
        kind(**settings)


def test_integer_parameters_are_refused():
    with pytest.raises(ArgumentError, match="parameter 'ids' has dtype int64, needs one of"):
        SGD().init({"ids": np.arange(3)})
