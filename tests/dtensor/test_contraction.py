"""Sums of products equal NumPy's for any layouts; the way is the one that moves least."""

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.debug import wire
from hpcpar.errors import ArgumentError, UnsupportedError

from .support import draw, draw_mesh, each_seed, same


def lengths(rng, num):
    return [int(rng.choice([0, 1, 2, 3, 5, 8])) for _ in range(num)]


def check_matmul(group, rng):
    mesh = draw_mesh(rng, group)
    dtype = str(rng.choice(["float64", "float32", "int32", "complex128"]))
    i, k, j, n, m = lengths(rng, 5)
    over = [((), ()), ((n,), (n,)), ((m, n), (n,)), ((m, 1), (1, n)), ((), (m,))]
    first, second = over[rng.integers(5)]
    shapes = [(*first, i, k) if rng.integers(4) else (k,), (*second, k, j)]
    shapes[1] = shapes[1] if rng.integers(4) else (k,)
    (x, a), (y, b) = (draw(rng, mesh, shape, dtype, ("sum", "mean")) for shape in shapes)
    same(x @ y, a @ b, 1e-5)
    same(np.matmul(x, y), np.matmul(a, b), 1e-5)
    if a.ndim <= 2 and b.ndim <= 2:
        same(np.dot(x, y), np.dot(a, b), 1e-5)
    z, c = draw(rng, mesh, (j, k), dtype, ())
    same(np.inner(x, z), np.inner(a, c), 1e-5)


@pytest.mark.sizes(1, 2, 3, 4, 6)
def test_matmul(ranks):
    ranks(each_seed(range(10), check_matmul))


EINSUMS = (
    "ij,jk->ik",
    "ij,jk",
    "bij,bjk->bik",
    "ij->ji",
    "ij->i",
    "ij->",
    "ij,ij->",
    "ii->i",
    "ii",
)
EINSUMS += ("i,j->ij", "ijk,kl,jm->ilm", "bhqd,bhkd->bhqk", "ij,jk,kl->il", "ij,i->j")


def check_einsum(group, rng):
    mesh = draw_mesh(rng, group)
    spec = EINSUMS[rng.integers(len(EINSUMS))]
    source = spec.split("->")[0].split(",")
    sizes = dict(zip("abcdefghijklmnopq", lengths(rng, 17), strict=True))
    pairs = [draw(rng, mesh, [sizes[c] for c in each], "float64", ("sum",)) for each in source]
    right = np.einsum(spec, *(a for _, a in pairs))
    same(np.einsum(spec, *(x for x, _ in pairs)), np.asarray(right), 1e-9)


@pytest.mark.sizes(1, 2, 3, 4)
def test_einsum(ranks):
    ranks(each_seed(range(12), check_einsum))


def check_tensordot(group, rng):
    mesh = draw_mesh(rng, group)
    p, q, r, s = lengths(rng, 4)
    x, a = draw(rng, mesh, (p, q, r), "float64", ("sum",))
    for shape, axes in (((q, r, s), 2), ((s, r, q), ([1, 2], [2, 1])), ((s, p), (0, 1)), ((s,), 0)):
        y, b = draw(rng, mesh, shape, "float64", ("sum",))
        same(np.tensordot(x, y, axes), np.tensordot(a, b, axes), 1e-9)
    y, b = draw(rng, mesh, (s,), "float64", ())
    z, c = draw(rng, mesh, (p,), "float64", ("sum",))
    same(np.outer(y, z), np.outer(b, c), 1e-9)


@pytest.mark.sizes(1, 2, 3)
def test_tensordot(ranks):
    ranks(each_seed(range(6), check_tensordot))


@pytest.mark.sizes(2, 4)
def test_the_forms_of_a_product(ranks):
    """What torch's rules say for one mesh axis: columns times rows waits, rows stay rows."""

    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        a, b = np.arange(64.0).reshape(8, 8), np.arange(64.0)[::-1].reshape(8, 8)

        def lay(array, placement):
            return hp.distribute(array, mesh, placement)

        rows, columns, alike = hp.Shard(0), hp.Shard(1), hp.Replicate()
        table = [
            (columns, rows, hp.Partial()),
            (rows, alike, rows),
            (alike, columns, columns),
            (alike, alike, alike),
        ]
        for p, q, result in table:
            with hp.dtensor.comm_mode(forbid=True), wire(group) as counted:
                product = lay(a, p) @ lay(b, q)
            assert counted.sent == 0
            assert product.placements == (result,)
            same(product, a @ b)
        with hp.dtensor.comm_mode() as moved:
            same(lay(a, rows) @ lay(b, rows), a @ b)
        assert len(moved) == 1

    ranks(body)


@pytest.mark.sizes(2, 4)
def test_the_smaller_operand_is_gathered(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        tall = hp.distribute(np.ones((4096, 64)), mesh, hp.Shard(0))
        small = hp.distribute(np.ones((64, 64)), mesh, hp.Shard(0))
        with wire(group) as counted:
            product = tall @ small
        assert product.placements == (hp.Shard(0),)
        assert counted.sent <= small.nbytes
        same(product, np.full((4096, 64), 64.0))

    ranks(body)


@pytest.mark.sizes(1, 2)
def test_what_is_refused(ranks):
    def body(group):
        mesh = hp.init_device_mesh((group.size,), ("a",), group=group)
        x = hp.dtensor.zeros((4, 3), mesh, hp.Shard(0))
        for wrong in (lambda: x @ x, lambda: x @ x[0, 0], lambda: 3 @ x):
            with pytest.raises(ArgumentError, match="matmul"):
                wrong()
        with pytest.raises(UnsupportedError, match=r"hp\.distribute"):
            x @ np.ones((3, 2))
        with pytest.raises(ArgumentError, match="do not fit over 1"):
            np.tensordot(x, x, 1)
        for spec in ("i...,ij", "ij,jk,kl", "i,ij", "ij,jk->il", "ij,ij->ii"):
            with pytest.raises(ArgumentError, match="einsum"):
                np.einsum(spec, x, x)
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.slow
@pytest.mark.sizes(2, 3, 4, 6)
@pytest.mark.parametrize("check", [check_matmul, check_einsum, check_tensordot])
def test_many_more(ranks, check):
    ranks(each_seed(range(100, 200), check))
