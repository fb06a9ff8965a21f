"""Ranks that disagree: one error on all ranks that names who has what; the group works on."""

import os

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.comm.where import call_site
from hpcpar.errors import HpcparError, MismatchError

pytestmark = pytest.mark.sizes(2, 3)
X = np.ones(4)

# field, what rank 0 calls, what the others call
CALLS = {
    "reduce dtype": ("dtype", lambda g: g.reduce(X), lambda g: g.reduce(X.astype("f4"))),
    "reduce shape": ("shape", lambda g: g.reduce(X), lambda g: g.reduce(np.ones(6))),
    "reduce op": ("op", lambda g: g.reduce(X), lambda g: g.reduce(X, "max")),
    "reduce root": ("root", lambda g: g.reduce(X), lambda g: g.reduce(X, root=1)),
    "all_reduce dtype": ("dtype", lambda g: g.all_reduce(X), lambda g: g.all_reduce(X > 0)),
    "all_reduce length": ("shape", lambda g: g.all_reduce(X), lambda g: g.all_reduce(np.ones(6))),
    "all_reduce order of axes": (
        "shape",
        lambda g: g.all_reduce(np.ones((2, 3))),
        lambda g: g.all_reduce(np.ones((3, 2))),
    ),
    "all_reduce factor": (
        "op",
        lambda g: g.all_reduce(X, hp.premul_sum(2)),
        lambda g: g.all_reduce(X, hp.premul_sum(3)),
    ),
    "all_reduce weight": (
        "weighted",
        lambda g: g.all_reduce(X, "mean", weight=1),
        lambda g: g.all_reduce(X, "mean"),
    ),
    "all_reduce tree": (
        "tree",
        lambda g: g.all_reduce({"a": X, "b": X}),
        lambda g: g.all_reduce({"a": X, "c": X}),
    ),
    "all_reduce leaves": (
        "leaves",
        lambda g: g.all_reduce([X, X]),
        lambda g: g.all_reduce([X, X[:2]]),
    ),
    "scan exclusive": ("exclusive", lambda g: g.scan(X), lambda g: g.scan(X, exclusive=True)),
    "reduce_scatter axis": (
        "axis",
        lambda g: g.reduce_scatter(np.ones((4, 4))),
        lambda g: g.reduce_scatter(np.ones((4, 4)), axis=1),
    ),
    "reduce_scatter sizes": (
        "sizes",
        lambda g: g.reduce_scatter(X, sizes=[4] + [0] * (g.size - 1)),
        lambda g: g.reduce_scatter(X, sizes=[0] * (g.size - 1) + [4]),
    ),
    "broadcast root": ("root", lambda g: g.broadcast(X), lambda g: g.broadcast(X, root=1)),
    "scatter root": ("root", lambda g: g.scatter(X), lambda g: g.scatter(X, root=1)),
    "all_gather dtype": ("dtype", lambda g: g.all_gather(X), lambda g: g.all_gather(X > 0)),
    "all_gather axes": ("shape", lambda g: g.all_gather(X), lambda g: g.all_gather(np.eye(4))),
    "all_gather axis": (
        "shape",
        lambda g: g.all_gather(np.ones((2, 3))),
        lambda g: g.all_gather(np.ones((2, 3)), axis=1),
    ),
    "all_gather promise": (
        "shape",
        lambda g: g.all_gather(X, sizes="equal"),
        lambda g: g.all_gather(np.ones(5), sizes="equal"),
    ),
    "all_gather sizes": (
        "sizes",
        lambda g: g.all_gather(X, sizes=[4] * g.size),
        lambda g: g.all_gather(X),
    ),
    "gather root": ("root", lambda g: g.gather(X), lambda g: g.gather(X, root=1)),
    "all_to_all dtype": ("dtype", lambda g: g.all_to_all(X), lambda g: g.all_to_all(X > 0)),
    "all_to_all axes": ("shape", lambda g: g.all_to_all(X), lambda g: g.all_to_all(np.eye(4))),
    "permute pairs": ("pairs", lambda g: g.permute(X, [(0, 1)]), lambda g: g.permute(X, [(1, 0)])),
}


@pytest.mark.parametrize("what", CALLS)
def test_every_field_that_must_agree(ranks, what):
    field, first, others = CALLS[what]

    def body(group):
        with pytest.raises(MismatchError) as caught:
            (first if group.rank == 0 else others)(group)
        message = str(caught.value)
        assert message.startswith(f"{what.split()[0]}: ranks disagree on {field}: rank 0 has ")
        assert "rank 1 has" in message or "ranks 1, 2 have" in message
        assert f"[rank {group.rank}/{group.size}, group " in message
        assert "#" in message
        assert group.all_reduce(1) == group.size

    ranks(body, check="full")


@pytest.mark.parametrize("check", ["auto", "full"])
def test_other_verbs_are_named_with_their_numbers(ranks, check):
    def body(group):
        group.barrier()
        seq = group.recorder.seq(group._runner.slot)
        with pytest.raises(MismatchError) as caught:
            group.all_reduce(np.ones(4)) if group.rank == 0 else group.broadcast(np.ones(4))
        message = str(caught.value)
        assert f"#{seq} all_reduce(" in message
        assert f"#{seq} broadcast(" in message
        assert ("test_agreement.py:" in message) == (check == "full")  # the call site
        note = "".join(caught.value.__notes__)
        assert "last operations" in note
        assert "barrier at test_agreement.py:" in note
        assert group.all_reduce(1) == group.size

    ranks(body, check=check)


def test_the_same_call_from_different_lines_is_told_once(ranks, caplog):
    """A rank that skips a call whose successor looks the same."""
    here = []

    def body(group):
        here.append(group.rank)
        for _ in range(3):
            group.all_reduce(1)
            if group.rank == 0:
                group.all_reduce(2)
            else:
                assert group.all_reduce(2) == 2 * group.size
            assert group.all_reduce(2, async_op=True).wait() == 2 * group.size
        assert group.all_reduce(1) == group.size

    ranks(body, check="full")
    told = [r.getMessage() for r in caplog.records if "different lines" in r.getMessage()]
    assert len(told) == (0 in here)
    for text in told:
        assert "all_reduce: the same call comes from different lines: rank 0 has test_agr" in text
        assert "[rank 0/" in text


def test_lines_are_not_compared_unless_asked(ranks, caplog):
    def body(group):
        if group.rank == 0:
            group.all_reduce(2)
        else:
            group.all_reduce(2)

    ranks(body)
    assert caplog.records == []


@pytest.mark.parametrize("check", ["auto", "full", "off"])
def test_a_mismatch_does_not_show_in_any_later_call(ranks, check):
    """Small calls are compared 16 times: ranks that made different ones still count alike."""

    def body(group):
        if check != "off" or group.backend != "mpi":
            with pytest.raises(MismatchError):
                group.all_reduce(np.ones(3 + (group.rank == 0)))
            with pytest.raises(MismatchError):
                group.all_gather(np.ones((2, 3 + (group.rank == 0))))
        for _ in range(20):
            assert group.all_reduce(np.ones(4)).sum() == 4 * group.size
            assert group.all_reduce(np.ones(3)).sum() == 3 * group.size
            assert group.all_gather(np.ones((2, 4))).shape == (2 * group.size, 4)
            assert group.all_gather(np.ones((2, 3))).shape == (2 * group.size, 3)

    ranks(body, check=check)


def test_outputs_stay_untouched(ranks):
    def body(group):
        x = np.full((2, 3) if group.rank == 0 else (3, 2), 7.0)
        with pytest.raises(MismatchError):
            group.all_reduce(x, out=x)
        assert (x == 7).all()
        with pytest.raises(MismatchError, match="all_gather"):
            group.all_gather(np.full((group.rank, 2), 1.0), sizes="equal")
        rows = group.all_gather(np.full((group.rank, 2), group.rank))
        assert rows[:, 0].tolist() == [r for r in range(group.size) for _ in range(r)]

    ranks(body, check="full")


def test_layout_and_byte_order_need_not_agree(ranks):
    def body(group):
        x = np.arange(6.0).reshape(2, 3)
        mine = np.asfortranarray(x) if group.rank == 0 else x.astype(">f8")
        assert group.all_reduce(mine).tolist() == (x * group.size).tolist()
        assert group.broadcast(mine, root=1).tolist() == x.tolist()

    ranks(body, check="full")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda g, x: g.broadcast(x),
            "broadcast: root 0 refused: x is None on rank 0, which is the root \\[",
        ),
        (lambda g, x: g.scatter(x), "scatter: root 0 refused: x is None"),
        (lambda g, x: g.scatter(np.ones(4), sizes=[1]), "scatter: root 0 refused: sizes"),
        (lambda g, x: g.broadcast(np.array([None])), "broadcast: root 0 refused: .*dtype object"),
    ],
)
def test_what_the_root_refuses_is_refused_everywhere(ranks, call, words):
    def body(group):
        if group.rank == 0:
            with pytest.raises(HpcparError) as caught:
                call(group, None)
            assert not isinstance(caught.value, MismatchError)
        else:
            with pytest.raises(MismatchError, match=words):
                group.broadcast() if "broadcast:" in words else group.scatter()
        assert group.all_reduce(1) == group.size

    ranks(body)


def test_what_another_rank_gives_must_match_the_root(ranks):
    def body(group):
        last = group.size - 1
        wrong = [np.ones(3), np.ones(4, "f4"), np.ones((4, 1)), 1.0, [X], np.ma.array(X)]
        for given in wrong:
            with pytest.raises(HpcparError, match=f"rank {last} |masked"):
                group.broadcast(given if group.rank == last else X)
        assert group.broadcast(X if group.rank == 0 else np.zeros(4)).tolist() == X.tolist()
        with pytest.raises(MismatchError, match="a tree of float64"):
            group.broadcast({"a": X} if group.rank == 0 else {"b": X})
        assert group.all_reduce(1) == group.size

    ranks(body)


def test_long_calls_are_compared_to_their_end(ranks):
    """Texts longer than a header travel in a second exchange."""

    def body(group):
        tree = {f"layer.{i}": np.ones(i % 3) for i in range(200)}
        assert group.broadcast(tree if group.rank == 0 else None).keys() == tree.keys()
        assert group.all_reduce(tree)["layer.1"] == group.size
        other = dict(tree, **{"layer.199": np.ones(5)})
        with pytest.raises(MismatchError, match="leaves"):
            group.all_reduce(tree if group.rank == 0 else other)
        assert group.all_reduce(1) == group.size

    ranks(body, check="full")


def test_the_call_site_is_the_first_line_outside_the_package():
    """A folder whose name only begins like the package's is outside."""
    folder = os.path.dirname(hp.__file__)
    for path in (f"{folder}_jobs/train.py", "/home/train.py"):
        names = {"call_site": call_site}
        exec(compile("\nfound = call_site()", path, "exec"), names)
        assert names["found"] == "train.py:2"
