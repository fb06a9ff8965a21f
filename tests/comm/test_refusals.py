"""Arguments that break a rule: refused before traffic, in words that help; the group works on."""

import numpy as np
import pytest

from hpcpar.errors import ArgumentError, HpcparError, MismatchError, UnsupportedError

A = np.arange(24.0).reshape(12, 2)  # every size cuts it evenly


def read_only(shape, dtype=float):
    x = np.zeros(shape, dtype)
    x.flags.writeable = False
    return x


def ring(group):
    return [(r, (r + 1) % group.size) for r in range(group.size)]


# Every verb that takes an array, called as group and array stand; `how` are further arguments.
VERBS = {
    "all_reduce": lambda g, x, **how: g.all_reduce(x, **how),
    "reduce": lambda g, x, **how: g.reduce(x, **how),
    "scan": lambda g, x, **how: g.scan(x, **how),
    "reduce_scatter": lambda g, x, **how: g.reduce_scatter(x, **how),
    "broadcast": lambda g, x, **how: g.broadcast(x, **how),
    "all_gather": lambda g, x, **how: g.all_gather(x, **how),
    "gather": lambda g, x, **how: g.gather(x, **how),
    "scatter": lambda g, x, **how: g.scatter(x, **how),
    "all_to_all": lambda g, x, **how: g.all_to_all(x, **how),
    "permute": lambda g, x, **how: g.permute(x, ring(g), **how),
    "send": lambda g, x, **how: g.send(x, (g.rank + 1) % g.size, async_op=True, **how),
    "sendrecv": lambda g, x, **how: g.sendrecv(
        x, (g.rank + 1) % g.size, (g.rank - 1) % g.size, **how
    ),
}
MOVING_TREES = ("all_reduce", "reduce", "scan", "broadcast")
ROOTED = ("reduce", "broadcast", "gather", "scatter")
ALONG_AXIS = ("reduce_scatter", "all_gather", "gather", "scatter", "all_to_all")
WITH_OUT = [verb for verb in VERBS if verb != "send"]


def assert_refused(group, verb, x, words, kind=ArgumentError, **how):
    """The verb refuses on every rank, says where, and the next call works."""
    with pytest.raises(kind) as caught:
        VERBS[verb](group, x, **how)
    message = str(caught.value)
    assert words in message
    assert message.startswith(verb)
    assert f"[rank {group.rank}/{group.size}, group " in message, message
    assert message.count("[rank ") == 1
    assert group.all_reduce(1) == group.size


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_no_array_is_refused(ranks, verb):
    def body(group):
        masked = np.ma.array([1.0, 2.0], mask=[True, False])
        refused = UnsupportedError if verb not in ("broadcast", "scatter") else HpcparError
        assert_refused(group, verb, masked, "masked array", refused)
        assert_refused(group, verb, np.array([None, 1]), "object", refused)
        assert_refused(group, verb, "text", "str", refused)
        if verb not in MOVING_TREES:
            assert_refused(group, verb, [1.0, 2.0], "x is a list", refused)
        elif verb != "broadcast":
            assert_refused(group, verb, {"a": [1.0, "text"]}, "str", refused)
            assert_refused(group, verb, None, "", refused)

    ranks(body)


@pytest.mark.parametrize("verb", ROOTED)
@pytest.mark.parametrize("root", [-1, 9, 1.0, True, None, "0"])
def test_roots_are_ranks_in_the_group(ranks, verb, root):
    ranks(lambda group: assert_refused(group, verb, A, f"root {root!r} must be", root=root))


@pytest.mark.parametrize("verb", ALONG_AXIS)
def test_axes_exist(ranks, verb):
    def body(group):
        kind = HpcparError if verb == "scatter" else ArgumentError
        for axis in (2, -3):
            assert_refused(group, verb, A, f"axis {axis} is out of range", kind, axis=axis)
        for axis in (0.0, None, True):
            assert_refused(group, verb, A, f"axis {axis!r} must be an integer", kind, axis=axis)
        if verb not in ("all_gather", "gather"):
            assert_refused(group, verb, np.array(1.0), "0-d", kind)

    ranks(body)


@pytest.mark.parametrize("verb", ALONG_AXIS)
def test_sizes_fit(ranks, verb):
    def body(group):
        n, gathers = group.size, verb in ("all_gather", "gather")
        kind = HpcparError if verb == "scatter" else ArgumentError
        wrong_sum = "x has 12 along axis 0" if gathers else "needs 12"
        assert_refused(group, verb, A, wrong_sum, kind, sizes=[13] * n)
        assert_refused(group, verb, A, f"needs {n} entries", kind, sizes=[12] * (n + 1))
        assert_refused(group, verb, A, "found -4", kind, sizes=[-4] * n)
        assert_refused(group, verb, A, "found 4.0", kind, sizes=[4.0] * n)
        assert_refused(group, verb, A, "must be a sequence", kind, sizes=4)
        if gathers:
            assert_refused(group, verb, A, "sizes 'same' must be", kind, sizes="same")

    ranks(body)


@pytest.mark.parametrize("verb", ["all_reduce", "reduce", "scan", "reduce_scatter"])
@pytest.mark.parametrize("op", ["SUM", "", None, 3, sum, ["sum"]])
def test_unknown_ops_are_refused(ranks, verb, op):
    ranks(lambda group: assert_refused(group, verb, A, f"op {op!r} is not one of", op=op))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("timeout", [0, -1, "1", True, float("nan")])
@pytest.mark.sizes(1, 2)
def test_timeouts_are_seconds(ranks, verb, timeout):
    ranks(lambda group: assert_refused(group, verb, A, "timeout", timeout=timeout))


def result_shape(group, verb):
    """Return the shape of the verb's result for A: (12, 2) on every rank."""
    mine = 12 // group.size
    rows = {"reduce_scatter": mine, "scatter": mine, "all_gather": 12 * group.size}
    return (rows.get(verb, 12 * group.size if verb == "gather" else 12), 2)


@pytest.mark.parametrize("verb", WITH_OUT)
def test_outs_that_do_not_fit_are_refused_on_all_ranks(ranks, verb):
    def body(group):
        shape = result_shape(group, verb)
        outs = {
            "out is read-only": read_only(shape),
            str((shape[0], 3)): np.zeros((shape[0], 3)),
            "(7, 2)": np.zeros((7, 2)),
            "float32": np.zeros(shape, np.float32),
            "()": np.zeros(()),
        }
        for words, out in outs.items():
            with pytest.raises((ArgumentError, MismatchError), match=f"^{verb}.*: ") as caught:
                VERBS[verb](group, A, out=out)
            assert words in str(caught.value)
            assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.parametrize("verb", ["all_gather", "scatter", "broadcast", "permute"])
@pytest.mark.parametrize("how", [{"sizes": None}, {"sizes": "equal"}])
@pytest.mark.sizes(2, 3)
def test_an_out_wrong_on_one_rank_is_refused_on_all(ranks, verb, how):
    """Where only the group knows what fits, nobody may be left waiting."""
    how = how if verb == "all_gather" else {}

    def body(group):
        last = group.rank == group.size - 1
        out = np.zeros((1, 1)) if last else np.zeros(result_shape(group, verb))
        x = None if verb == "broadcast" and last else A
        with pytest.raises(HpcparError, match=f"{verb}: ") as caught:
            VERBS[verb](group, x, out=out, **how)
        assert f"rank {group.size - 1} " in str(caught.value) or last
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.sizes(2, 3)
def test_an_out_wrong_on_the_root_of_gather_is_refused_on_all(ranks):
    def body(group):
        out = np.zeros((1, 1)) if group.rank == 0 else None
        with pytest.raises(HpcparError, match="gather: "):
            group.gather(A, out=out)
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.parametrize("verb", [verb for verb in WITH_OUT if verb != "sendrecv"])
def test_outs_that_overlap_x_are_refused(ranks, verb):
    def body(group):
        rows = 12 * group.size + 1
        memory = np.arange(rows * 2.0).reshape(rows, 2)
        out = memory[: result_shape(group, verb)[0]]
        elsewhere = verb == "gather" and group.rank > 0
        with pytest.raises(HpcparError, match="refused" if elsewhere else "overlap"):
            VERBS[verb](group, memory[1:13], out=out)
        assert memory.tolist() == np.arange(rows * 2.0).reshape(rows, 2).tolist()
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.parametrize("tag", [-1, 2**28, 1.0, True, "1"])
def test_tags_are_small_integers(ranks, tag):
    def body(group):
        for verb in ("send", "sendrecv"):
            assert_refused(group, verb, A, f"tag {tag!r} must be", tag=tag)
        for receive in (group.recv, group.probe):
            with pytest.raises(ArgumentError, match=rf"tag {tag!r} must be .*\[rank "):
                receive(0, tag=tag)

    ranks(body)


def test_peers_are_ranks_in_the_group(ranks):
    def body(group):
        for peer in (-1, group.size, 0.0, None, True):
            with pytest.raises(ArgumentError, match=f"send: dst {peer!r} must be"):
                group.send(A, peer)
            with pytest.raises(ArgumentError, match=f"sendrecv: dst {peer!r} must be"):
                group.sendrecv(A, peer, 0)
        for peer in (-1, group.size, 0.0, True):
            with pytest.raises(ArgumentError, match=f"recv: src {peer!r} must be"):
                group.recv(peer)
        with pytest.raises(ArgumentError, match="cannot receive while it sends"):
            group.send(A, group.rank)
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([(0, 9)], "destination 9 must be in"),
        ([(-1, 0)], "source -1 must be in"),
        ([(0, 0), (0, 0)], "name a source twice"),
        ([0], "must be (source, destination) pairs"),
        (None, "must be (source, destination) pairs"),
        ([(0.5, 0)], "source 0.5 must be an integer"),
    ],
)
def test_pairs_of_permute(ranks, pairs, words):
    def body(group):
        with pytest.raises(ArgumentError) as caught:
            group.permute(A, pairs)
        assert words in str(caught.value)
        assert group.all_reduce(1) == group.size

    ranks(body)


def test_outs_of_trees_have_the_structure_of_x(ranks):
    def body(group):
        x = {"a": np.ones(2), "b": [1.0, np.ones(3, int)]}
        for out in ({"a": np.ones(2)}, np.ones(2), [np.ones(2)] * 3):
            with pytest.raises(HpcparError, match="all_reduce: out"):
                group.all_reduce(x, out=out)
        with pytest.raises(ArgumentError, match="cannot be written to"):
            group.all_reduce(x, out={"a": np.ones(2), "b": [1.0, np.ones(3, int)]})
        for out in (1.0, np.float64(2)):
            with pytest.raises(ArgumentError, match="cannot be written to"):
                group.all_reduce(np.ones(()), out=out)
        assert group.all_reduce(1) == group.size

    ranks(body)
