"""The same code on NumPy and on device arrays, with a stand-in that refuses what CuPy refuses."""

import sys
from types import ModuleType

import numpy as np
import pytest

from hpcpar.nn import GPT, Ctx, cast, collect, cross_entropy, cross_entropy_backward
from hpcpar.optim import SGD, AdamW, clip_grad_norm
from hpcpar.random import Key

MODELS = {
    "gpt2": {},
    "llama": {"mlp": "swiglu", "norm": "rms", "tied": False, "kv_heads": 1, "dropout": 0.3},
}
# what CuPy 13 has, of all that layers and optimizers may ask for
IN_CUPY = {
    *("add", "arange", "argsort", "asarray", "concatenate", "cos", "count_nonzero", "divide"),
    *("dot", "einsum", "empty", "empty_like", "exp", "flatnonzero", "log", "matmul", "max"),
    *("min", "minimum", "multiply", "ones", "sin", "sqrt", "subtract", "sum", "tanh", "where"),
    *("zeros",),
}
METHODS = ("argmax", "astype", "copy", "cumsum", "max", "mean", "min", "reshape", "sum", "swapaxes")


class DeviceArray(np.ndarray):
    """Refuses what CuPy refuses: to meet host arrays, NumPy's functions, silent conversion."""

    def __array_ufunc__(self, ufunc, method, *args, out=(), **options):
        refuse_host([*args, *out], ufunc.__name__)
        if out:
            options["out"] = bare(out)
        result = getattr(ufunc, method)(*bare(args), **options)
        return out[0] if out else device(result)

    def __array_function__(self, func, types, args, options):
        raise TypeError(f"np.{func.__name__} was called on a device array")

    def __array__(self, *args, **options):
        raise TypeError("a device array was converted in silence")

    def __getitem__(self, index):
        refuse_host(index if isinstance(index, tuple) else [index], "an index")
        return device(bare(self)[bare(index)])

    def __setitem__(self, index, value):
        refuse_host([value, *(index if isinstance(index, tuple) else [index])], "an assignment")
        bare(self)[bare(index)] = bare(value)


def _method(name):
    def call(self, *args, **options):
        result = getattr(bare(self), name)(*args, **{k: bare(v) for k, v in options.items()})
        return device(result)

    return call


for _name in METHODS:
    setattr(DeviceArray, _name, _method(_name))


class Cupy(ModuleType):
    """NumPy's functions for device arrays alone; keeps the names that are asked for."""

    ndarray = DeviceArray

    def __init__(self):
        super().__init__("cupy")
        self.asked = set()

    def __getattr__(self, name):
        found = getattr(np, name)
        self.asked.add(name)
        if isinstance(found, np.ufunc):
            return found

        def call(*args, **options):
            if name != "asarray":
                refuse_host([*args, *options.values()], f"cupy.{name}")
            result = found(*bare(args), **{k: bare(v) for k, v in options.items()})
            return device(result) if options.get("out") is None else options["out"]

        return call


def bare(x):
    if isinstance(x, list | tuple):
        return type(x)(bare(part) for part in x)
    return x.view(np.ndarray) if isinstance(x, DeviceArray) else x


def device(x):
    return np.asarray(x).view(DeviceArray) if isinstance(x, np.ndarray | np.generic) else x


def refuse_host(values, where):
    for value in values:
        if isinstance(value, np.ndarray) and not isinstance(value, DeviceArray):
            raise TypeError(f"a host array of shape {value.shape} in {where}")


@pytest.fixture
def cupy(monkeypatch):
    module = Cupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def train(model, params, ids):
    """Two micro-steps, clipping, both optimizers and a sample; all numbers that come out."""
    grads, states = {}, []
    logits, saved = model.forward(params, ids, Ctx(train=True, key=Key(5), step=1))
    loss, kept = cross_entropy(logits, ids)
    for _ in range(2):
        model.backward(params, saved, cross_entropy_backward(kept), collect(grads))
    norm = clip_grad_norm(grads, 0.5)
    for optimizer in (AdamW(), SGD(momentum=0.9)):
        states.append(optimizer.init(params))
        optimizer.update(params, grads, states[-1], lr=0.1)
    tokens = model.generate(params, ids[:, :2], 3, key=Key(1))
    arrays = [*params.values(), *grads.values(), *states[0].values(), *states[1].values(), tokens]
    return [float(loss), norm, *arrays]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_on_the_device_is_the_model_on_the_host(cupy, name, dtype):
    model = GPT(layers=2, hidden=8, heads=2, vocab=11, seq=6, **MODELS[name])
    params = cast(model.init(Key(0)), dtype)
    ids = np.arange(12).reshape(2, 6) % 11
    on_device = {name: device(array.copy()) for name, array in params.items()}
    there = train(model, on_device, device(ids))
    here = train(model, params, ids)
    for mine, other in zip(here, there, strict=True):
        assert isinstance(other, DeviceArray) == isinstance(mine, np.ndarray)
        assert np.array_equal(mine, bare(other))
    assert cupy.asked <= IN_CUPY


def test_the_stand_in_refuses_host_arrays(cupy):
    there, here = device(np.ones(3)), np.ones(3)
    for meet in (
        lambda: there + here,
        lambda: np.sum(there),
        lambda: np.dot(there, here),
        lambda: there.__setitem__(0, here[:1]),
        lambda: there[np.arange(2)],
        lambda: cupy.where(there > 0, here, 0),
    ):
        with pytest.raises(TypeError):
            meet()
