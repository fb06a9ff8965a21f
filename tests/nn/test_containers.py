import numpy as np
import pytest

from hpcpar.errors import ArgumentError, UnsupportedError
from hpcpar.nn import (
    GPT,
    Ctx,
    Embedding,
    Layer,
    LayerNorm,
    Linear,
    Residual,
    Sequential,
    cast,
    collect,
    named_layers,
    replace,
    scope,
    scope_hook,
)
from hpcpar.random import Key


class Doubled(Layer):
    """A wrapper: twice the layer, under the layer's names."""

    def __init__(self, inner):
        self.children = {"": inner}

    def init(self, key):
        return self.children[""].init(key)

    def forward(self, params, x, ctx):
        y, saved = self.children[""].forward(params, x, ctx)
        return 2 * y, saved

    def backward(self, params, saved, dy, on_grad):
        return self.children[""].backward(params, saved, 2 * dy, on_grad)


def test_scopes_nest_and_list():
    params = {"a.b.w": np.ones(1), "a.bias": np.ones(2), "ab.w": np.ones(3)}
    inner = scope(scope(params, "a"), "b")
    assert dict(inner) == {"w": params["a.b.w"]}
    assert (len(scope(params, "a")), "w" in inner, "x" in inner) == (2, True, False)
    assert inner["w"] is params["a.b.w"]
    assert scope(params, "") is params
    seen = []
    hook = scope_hook(scope_hook(lambda name, fill: seen.append(name), "a"), "b")
    hook("w", np.ones)
    assert seen == ["a.b.w"]
    assert scope_hook(hook, "") is hook


def test_collect_adds(rand):
    layer, grads = Linear(3, 2), {}
    params, x = cast(layer.init(Key(0)), "float64"), rand(4, 3)
    _, saved = layer.forward(params, x, Ctx())
    for times in (1, 2, 3):
        layer.backward(params, saved, np.ones((4, 2)), collect(grads))
        np.testing.assert_array_equal(grads["bias"], np.full(2, 4.0 * times))


def test_initial_values_depend_on_names_only():
    layer = Linear(4, 3)
    flat = Sequential({"up": layer}).init(Key(5))
    nested = Sequential({"a": Sequential({"other": Linear(9, 9), "up": layer})}).init(Key(5))
    direct = layer.init(Key(5).child("a").child("up"))
    np.testing.assert_array_equal(nested["a.up.weight"], direct["weight"])
    assert (nested["a.up.weight"] != flat["up.weight"]).all()
    wrapped = replace(Sequential({"up": layer}), "up", Doubled).init(Key(5))
    np.testing.assert_array_equal(wrapped["up.weight"], flat["up.weight"])


def test_names_of_layers_in_order():
    names = [name for name, _ in named_layers(Sequential({"a": Residual(Linear(1, 1))}), "m")]
    assert names == ["m", "m.a", "m.a"]


def test_replace_wraps_what_matches(make_params):
    model = GPT(layers=2, hidden=4, heads=1, vocab=5, seq=4)
    wrapped = replace(replace(model, "blocks.*", Doubled), "blocks.1", Residual)
    found = [
        (n, type(x).__name__) for n, x in named_layers(wrapped) if n in ("blocks.0", "blocks.1")
    ]
    assert found == [
        ("blocks.0", "Doubled"),
        ("blocks.0", "Block"),
        ("blocks.1", "Residual"),
        ("blocks.1", "Doubled"),
        ("blocks.1", "Block"),
    ]
    assert not any(isinstance(layer, Doubled) for _, layer in named_layers(model))
    assert wrapped.children["norm"] is model.children["norm"]
    assert wrapped.init(Key(1)).keys() == model.init(Key(1)).keys()
    inner = replace(wrapped, "blocks.*.attn.q", Doubled)  # through wrappers
    assert sum(isinstance(layer, Doubled) for _, layer in named_layers(inner)) == 4


def test_replaced_layers_run(gradcheck, make_params):
    model = Sequential({"a": Linear(2, 2), "b": Linear(2, 2)})
    doubled = replace(model, "?", Doubled)
    params, x = make_params(model), np.ones((1, 2))
    twice = doubled.forward(params, x, Ctx())[0]
    first = 2 * model.children["a"].forward(scope(params, "a"), x, Ctx())[0]
    np.testing.assert_array_equal(
        twice, 2 * model.children["b"].forward(scope(params, "b"), first, Ctx())[0]
    )
    gradcheck(doubled, x)


def test_what_is_refused(rand):
    with pytest.raises(ArgumentError, match=r"pattern 'block.0' matches no .* are '0', '1'"):
        replace(Sequential([Linear(1, 1), Linear(1, 1)]), "block.0", Residual)
    with pytest.raises(ArgumentError, match=r"matches no layer of Linear. Its children are none"):
        replace(Linear(1, 1), "a", Residual)
    with pytest.raises(ArgumentError, match=r"child name 'a.b' holds a dot"):
        Sequential({"a.b": Linear(1, 1)})
    with pytest.raises(ArgumentError, match=r"returned shape \(2, 3\), needs its input's \(2, 4\)"):
        layer = Residual(Linear(4, 3))
        layer.forward(cast(layer.init(Key(0)), "float64"), rand(2, 4), Ctx())
    with pytest.raises(UnsupportedError, match="dtype int32 is not one of float16"):
        cast({}, "int32")


def test_parameters_that_do_not_fit(rand):
    model = Sequential({"up": Linear(4, 3), "norm": LayerNorm(3)})
    params = cast(model.init(Key(0)), "float64")
    x = rand(2, 4)
    missing = {name: p for name, p in params.items() if name != "norm.bias"}
    with pytest.raises(ArgumentError, match=r"forward \(norm\): params has no 'norm.bias'"):
        model.forward(missing, x, Ctx())
    with pytest.raises(ArgumentError, match=r"\(up\): parameter 'weight' has shape \(3,\), needs"):
        model.forward({**params, "up.weight": params["up.bias"]}, x, Ctx())
    with pytest.raises(UnsupportedError, match="x has dtype int64"):
        model.forward(params, np.ones((2, 4), int), Ctx())
    with pytest.raises(ArgumentError, match=r"Linear.forward: x has shape \(\), needs \(..., 4\)"):
        model.children["up"].forward(scope(params, "up"), np.float64(1), Ctx())


def test_ids_that_do_not_fit():
    table = Embedding(5, 2)
    params = table.init(Key(0))
    for bad in (-1, 5):
        with pytest.raises(ArgumentError, match=rf"x holds {bad}, needs ids from 0 to 4"):
            table.forward(params, np.array([[0, bad]]), Ctx())
    with pytest.raises(UnsupportedError, match="x has dtype float64, needs integers"):
        table.forward(params, np.zeros((1, 2)), Ctx())
