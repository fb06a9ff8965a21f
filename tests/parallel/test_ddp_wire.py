"""What a step puts on the wire: each bucket once, when it is synchronised, and nothing else."""

import numpy as np
import pytest

from hpcpar.comm import symmetric
from hpcpar.debug import wire
from hpcpar.nn import GPT, Ctx, cast, collect, cross_entropy, cross_entropy_backward
from hpcpar.parallel import DDP
from hpcpar.random import Key
from hpcpar.testing import run_ranks

SHAPES = {"a": (64,), "b": (12, 12), "c": (5,)}
COUNT = 64 + 144 + 5


def make(group):
    params = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    return DDP(params, group=group, first_bucket_nbytes=1, bucket_nbytes=1000)


def fill(step):
    for name, shape in SHAPES.items():
        step.put(name, np.ones(shape))


def views(ddp):
    return ddp._replica.layout.views.values()


def ring(parts, size):
    """Return what an all-reduce of `parts` elements sends, by the uneven rule, at most."""
    return 2 * (size - 1) * -(-parts // size) * 8


@pytest.mark.parametrize("weight", [None, 2.0])
def test_a_step_sends_each_bucket_once_and_32_bytes(ranks, weight):
    def body(group):
        ddp = make(group)
        with ddp.step() as step:  # after it the ranks agree on the order of the buckets
            fill(step)
        with wire(group) as counted, ddp.step(weight=weight) as step:
            fill(step)
        (row,) = counted.rows
        assert (row.verb, row.operations) == ("all_reduce", len(ddp.buckets) + 1)
        sent = [sum(r.sent for r in rows) for rows in counted.all_ranks()]
        assert sum(sent) == 2 * (group.size - 1) * 8 * (COUNT + 4)
        assert max(sent) <= sum(ring(b.count, group.size) for b in ddp.buckets) + ring(
            4, group.size
        )

    ranks(body)


def test_micro_steps_send_nothing(ranks):
    def body(group):
        ddp = make(group)
        with wire(group) as counted, ddp.no_sync():
            for _ in range(3):
                with ddp.step() as step:
                    fill(step)
        assert counted.rows == []

    ranks(body)


def test_construction_sends_parameters_in_coalesced_chunks(ranks):
    def body(group):
        with wire(group) as counted:
            make(group)
        operations = {row.verb: row.operations for row in counted.rows}
        assert operations.pop("broadcast") == 1
        assert sum(operations.values()) <= 6  # names and memory are agreed on, once for all buckets
        sent = [sum(r.sent for r in rows if r.verb == "broadcast") for rows in counted.all_ranks()]
        assert sum(sent) == (group.size - 1) * COUNT * 8

    ranks(body)


def gradients(model, params, ids, targets, on_grad):
    logits, saved = model.forward(params, ids, Ctx())
    _, kept = cross_entropy(logits, targets)
    model.backward(params, saved, cross_entropy_backward(kept), on_grad)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("parts", [1, 2])
def test_gradients_of_a_model_are_those_of_the_whole_batch(ranks, tied, parts):
    """Ragged batches per rank, in micro-steps: raw float64 gradients against one process."""
    model = GPT(layers=2, hidden=8, heads=2, vocab=11, seq=4, tied=tied)
    ids = np.arange(20 * 5).reshape(20, 5) ** 2 % 11

    def body(group):
        params = cast(model.init(Key(group.rank)), "float64")
        ddp = DDP(params, group=group, first_bucket_nbytes=1, bucket_nbytes=2000)
        expected = {}
        used = ids[: group.size * (group.size + 1)]
        gradients(model, ddp.params, used[:, :4], used[:, 1:], collect(expected))
        start, count = group.rank * (group.rank + 1), 2 * (group.rank + 1)
        pieces = np.array_split(used[start : start + count], parts)
        for number, mine in enumerate(pieces):
            step = ddp.step(weight=len(mine))
            if number < parts - 1:
                with ddp.no_sync(), ddp.step(weight=len(mine)) as step:
                    gradients(model, ddp.params, mine[:, :4], mine[:, 1:], step.on_grad)
            else:
                with step:
                    gradients(model, ddp.params, mine[:, :4], mine[:, 1:], step.on_grad)
        assert ddp.grads.keys() == expected.keys()
        for name, grad in ddp.grads.items():
            assert np.allclose(grad, expected[name], rtol=1e-11, atol=1e-15), name

    ranks(body)


def test_buckets_lie_where_ranks_share_memory(ranks):
    def body(group):
        ddp = make(group)
        shared = group.backend in ("node", "threads") and group.size > 1
        for bucket in ddp.buckets:
            for name in bucket.names:
                assert (
                    symmetric.is_symmetric(ddp._replica.layout.views[name], group=group) == shared
                )

    ranks(body)


@pytest.mark.threads_only
def test_buckets_are_plain_memory_where_there_is_no_room(monkeypatch):
    monkeypatch.setattr("hpcpar.comm.window.free_memory", lambda: 10)

    def body(group):
        ddp = make(group)
        assert not any(
            symmetric.is_symmetric(v, group=group) for v in ddp._replica.layout.views.values()
        )
        with ddp.step() as step:
            fill(step)

    run_ranks(2, body)
