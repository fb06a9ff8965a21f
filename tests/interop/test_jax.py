"""Gradients of JAX on the host: a pytree goes in, and comes out averaged."""

import numpy as np
import pytest

import hpcpar as hp


def test_a_pytree_of_gradients_is_averaged_by_tokens(ranks):
    jax = pytest.importorskip("jax")
    params = {"w": jax.numpy.ones((4, 3)), "b": [jax.numpy.zeros(3)]}

    def loss(params, x):
        return jax.numpy.mean((jax.numpy.tanh(x @ params["w"]) + params["b"][0]) ** 2)

    def body(group):
        grads = [
            jax.grad(loss)(params, jax.numpy.arange(8.0).reshape(2, 4) * (rank + 1))
            for rank in range(group.size)
        ]
        mean = group.all_reduce(grads[group.rank], "mean", weight=group.rank + 1)
        assert jax.tree.structure(mean) == jax.tree.structure(params)
        assert isinstance(mean["w"], jax.Array)
        weights = np.arange(1.0, group.size + 1)
        for key, leaf in (("w", lambda g: g["w"]), ("b", lambda g: g["b"][0])):
            want = sum(w * np.asarray(leaf(g)) for w, g in zip(weights, grads, strict=True))
            assert np.allclose(leaf(mean), want / weights.sum(), rtol=1e-5), key
        assert hp.all_reduce(1, group=group) == group.size

    ranks(body)
