"""Boxes of raw arrays: any held, any wanted, in rounds or at once."""

import numpy as np
import pytest

from hpcpar.debug import wire
from hpcpar.errors import ArgumentError, MismatchError
from hpcpar.mesh import plan_exchange
from hpcpar.mesh.boxes import count, intersect, minus, shape_of, within
from hpcpar.mesh.exchange_plan import in_rounds, pieces


def draw_box(rng, shape):
    ends = [sorted(int(n) for n in rng.integers(0, n + 1, 2)) for n in shape]
    return tuple(map(tuple, ends))


def covering(rng, shape, num_ranks):
    """Return boxes for each rank that hold everything, with overlaps."""
    boxes = [[draw_box(rng, shape) for _ in range(rng.integers(0, 3))] for _ in range(num_ranks)]
    missing = [tuple((0, n) for n in shape)]
    for box in (box for each in boxes for box in each):
        missing = [left for part in missing for left in minus(part, box)]
    for box in missing:
        boxes[rng.integers(num_ranks)].append(box)
    return boxes


def test_boxes_minus_boxes_are_numpys():
    rng = np.random.default_rng(0)
    for _ in range(300):
        shape = tuple(int(n) for n in rng.integers(1, 6, rng.integers(1, 4)))
        a, b = draw_box(rng, shape), draw_box(rng, shape)
        outer = tuple((0, n) for n in shape)
        left, right = np.zeros(shape, int), np.zeros(shape, int)
        left[within(a, outer)], right[within(b, outer)] = 1, 1
        counted = np.zeros(shape, int)
        for part in minus(a, b):
            counted[within(part, outer)] += 1
        assert np.array_equal(counted, left * (1 - right))
        shared = intersect(a, b)
        assert (0 if shared is None else count(shared)) == (left * right).sum()


@pytest.mark.parametrize("most", [None, 2, 7, 1000])
def test_pieces_hold_each_wanted_element_once(most):
    rng = np.random.default_rng(1)
    for _ in range(100):
        shape = tuple(int(n) for n in rng.integers(0, 7, rng.integers(0, 4)))
        num_ranks = int(rng.integers(1, 6))
        src, dst = covering(rng, shape, num_ranks), covering(rng, shape, num_ranks)
        found = pieces(src, dst)
        rounds = in_rounds(found, num_ranks, most)
        between = [piece for some in rounds for piece in some]
        outer = tuple((0, n) for n in shape)
        for rank, boxes in enumerate(dst):
            for number, box in enumerate(boxes):
                counted = np.zeros(shape, int)
                own = [p for p in found if p.src == p.dst]
                for piece in own + between:
                    if (piece.dst, piece.dst_box) == (rank, number):
                        held = src[piece.src][piece.src_box]
                        assert intersect(piece.box, held) == piece.box
                        counted[(*within(piece.box, outer),)] += 1
                wanted = np.zeros(shape, int)
                wanted[(*within(box, outer),)] = 1
                assert np.array_equal(counted, wanted)
        for some in rounds:
            for rank in range(num_ranks):
                moved = sum(count(p.box) for p in some if rank in (p.src, p.dst))
                assert most is None or moved <= most


def test_who_holds_it_as_well_shares_the_work():
    everything = ((0, 8),)
    src = [[everything], [everything], [], []]
    found = pieces(src, [[], [], [everything], [everything]])
    assert sorted((p.src, p.dst) for p in found) == [(0, 3), (1, 2)]


@pytest.mark.sizes(1, 2, 3, 4)
def test_any_boxes(ranks):
    def body(group):
        for seed in range(40):
            rng = np.random.default_rng(seed)
            shape = tuple(int(n) for n in rng.integers(0, 7, rng.integers(0, 4)))
            src, dst = covering(rng, shape, group.size), covering(rng, shape, group.size)
            whole = rng.integers(0, 100, shape).astype("int32")
            outer = tuple((0, n) for n in shape)
            most = [None, 16][seed % 2]
            plan = plan_exchange(src, dst, "int32", group=group, max_nbytes=most)
            for turn in range(2):
                held = [whole[within(box, outer)] + turn for box in src[group.rank]]
                got = plan(held)
                got = [got] if len(dst[group.rank]) == 1 else got
                for box, array in zip(dst[group.rank], got, strict=True):
                    assert np.array_equal(array, whole[within(box, outer)] + turn)

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_a_halo_comes_into_the_memory_given(ranks):
    def body(group):
        n, size = 4, group.size
        src = [((n * r, n * (r + 1)), (0, 3)) for r in range(size)]
        dst = [((max(0, n * r - 1), min(n * size, n * (r + 1) + 1)), (0, 3)) for r in range(size)]
        plan = plan_exchange(src, dst, "float64", group=group)
        whole = np.arange(n * size * 3.0).reshape(-1, 3)
        out = np.empty(shape_of(dst[group.rank]))
        x = whole[within(src[group.rank], ((0, n * size), (0, 3)))]
        with wire(group) as counted:
            assert plan(x, out) is out
        assert np.array_equal(out, whole[within(dst[group.rank], ((0, n * size), (0, 3)))])
        neighbours = len(out) - n
        assert counted.sent == plan.nbytes_sent == 24 * neighbours
        assert plan.num_rounds == 1
        work = plan(x + 1, async_op=True)
        assert np.array_equal(work.wait(), out + 1)

    ranks(body)


@pytest.mark.sizes(1, 2, 3)
def test_what_is_refused(ranks):
    def body(group):
        size = group.size
        whole = [((0, 4),)] * size
        for boxes in ([((0, 4),)] * (size + 1), 7, [((0,),)] * size, [((4, 0),)] * size):
            with pytest.raises(ArgumentError, match="plan_exchange: src_boxes"):
                plan_exchange(boxes, whole, "int64", group=group)
        with pytest.raises(ArgumentError, match=r"nobody holds \(\(4, 5\),\)"):
            plan_exchange(whole, [((0, 5),)] * size, "int64", group=group)
        plan = plan_exchange(whole, whole, "int64", group=group)
        for x in (np.zeros(4), np.zeros(5, int), [np.zeros(4, int)] * 2, [1, 2, 3, 4]):
            with pytest.raises(ArgumentError, match=r"x must have shape \(4,\) and dtype int64"):
                plan(x)
        x = np.arange(4)
        with pytest.raises(ArgumentError, match="out overlaps x"):
            plan(x, x)
        assert np.array_equal(plan(x), x)
        assert group.all_reduce(1) == size

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_other_boxes_on_another_rank_are_an_error_on_all(ranks):
    def body(group):
        boxes = [((0, 4 + (group.rank == 1)),)] * group.size
        with pytest.raises(MismatchError, match=r"ranks \[1\] were given other boxes"):
            plan_exchange(boxes, [((0, 1),)] * group.size, "int64", group=group)
        assert group.all_reduce(1) == group.size

    ranks(body)
