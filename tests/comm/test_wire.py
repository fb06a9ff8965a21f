"""Bytes on the wire: the formulas of the bandwidth-optimal algorithms, and that they balance."""

import numpy as np
import pytest

from hpcpar.comm.record import VERBS, Entry, traffic
from hpcpar.comm.sizes import uneven
from hpcpar.errors import ArgumentError

N = 4096


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize(
    ("verb", "given", "wanted"),
    [
        ("all_reduce", {"nbytes": N}, lambda r: (6144, 6144, 6)),
        ("reduce_scatter", {"nbytes": N}, lambda r: (3072, 3072, 3)),
        ("all_gather", {"nbytes": N, "received_parts": [N] * 4}, lambda r: (3 * N, 3 * N, 3)),
        ("broadcast", {"nbytes": N}, lambda r: (N * (r < 3), N * (r > 0), int(r < 3))),
        ("reduce", {"nbytes": N}, lambda r: (N * (r > 0), N * (r < 3), int(r > 0))),
        ("scan", {"nbytes": N}, lambda r: (N * (r < 3), N * (r > 0), int(r < 3))),
        (
            "gather",
            {"nbytes": N, "received_parts": [N] * 4},
            lambda r: (N * (r > 0), 3 * N * (r == 0), int(r > 0)),
        ),
        (
            "all_to_all",
            {"nbytes": N, "sent_parts": [1024] * 4, "received_parts": [1024] * 4},
            lambda r: (3072, 3072, 3),
        ),
        ("send", {"sent_parts": [N]}, lambda r: (N, 0, 1)),
    ],
)
def test_goldens_for_four_ranks(verb, given, wanted, rank):
    assert traffic(verb, rank, 4, itemsize=4, **given) == wanted(rank)
    if verb != "send":
        assert traffic(verb, 0, 1, itemsize=4, **given) == (0, 0, 0)


def test_uneven_parts_count_whole_elements():
    parts = uneven(10, 4)  # 3, 3, 3, 1 elements of 8 bytes
    got = [traffic("all_reduce", r, 4, nbytes=80, itemsize=8) for r in range(4)]
    assert [t.sent for t in got] == [8 * (10 - p + 3 * p) for p in parts]


CALLS = {
    "all_reduce": lambda g, x: g.all_reduce(x),
    "reduce": lambda g, x: g.reduce(x, root=g.size - 1),
    "scan": lambda g, x: g.scan(x),
    "reduce_scatter": lambda g, x: g.reduce_scatter(x),
    "broadcast": lambda g, x: g.broadcast(x, root=g.size - 1),
    "all_gather": lambda g, x: g.all_gather(x[: 3 + g.rank]),
    "gather": lambda g, x: g.gather(x[: 3 + g.rank], root=g.size - 1),
    "scatter": lambda g, x: g.scatter(x),
    "all_to_all": lambda g, x: g.all_to_all(x),
    "permute": lambda g, x: g.permute(x, [(r, (r + 1) % g.size) for r in range(g.size)]),
    "sendrecv": lambda g, x: g.sendrecv(x, (g.rank + 1) % g.size, (g.rank - 1) % g.size),
    "barrier": lambda g, x: g.barrier(),
}


@pytest.mark.parametrize("how", ["blocking", "asynchronous"])
@pytest.mark.parametrize("verb", CALLS)
def test_what_all_ranks_send_is_what_all_receive(ranks, verb, how):
    def body(group):
        x = np.arange(10.0)
        CALLS[verb](group, x)
        entry = Entry(*group.recorder.last(1)[0])
        assert VERBS[entry.verb] == verb
        assert entry.status == 0
        assert entry.end_ns >= entry.start_ns > 0
        table = group.all_gather(np.array([[entry.sent, entry.received, entry.messages]]))
        sent, received, messages = table.sum(axis=0)
        assert sent == received
        assert (sent > 0) == (verb != "barrier" and (group.size > 1 or verb == "sendrecv"))
        assert (messages >= group.size - 1) or sent == 0

    ranks(body)


@pytest.mark.sizes(2)
def test_messages_are_counted_on_both_sides(ranks):
    def body(group):
        for count in (3, 3000):
            if group.rank == 0:
                group.send(np.arange(float(count)), 1)
            else:
                group.recv(0)
            entry = Entry(*group.recorder.last(1)[0])
            wanted = (8 * count, 0, 1) if group.rank == 0 else (0, 8 * count, 0)
            assert (entry.sent, entry.received, entry.messages) == wanted

    ranks(body)


def test_records_say_what_was_called(ranks):
    def body(group):
        group.all_reduce(np.ones((3, 4), np.float32))
        entry = Entry(*group.recorder.last(1)[0])
        seq = entry.seq
        assert (entry.elements, entry.itemsize, entry.peer) == (12, 4, -1)
        group.reduce(np.ones(5), root=0)
        entry = Entry(*group.recorder.last(1)[0])
        assert (entry.seq, entry.peer, entry.elements) == (seq + 1, 0, 5)
        with pytest.raises(ArgumentError):
            group.reduce(np.ones(5), root=-1)
        assert Entry(*group.recorder.last(1)[0]).seq == seq + 1  # refused: never begun
        totals = {VERBS[verb]: ops for _, verb, ops, *_ in group.recorder.totals()}
        assert totals["reduce"] >= 1

    ranks(body)
