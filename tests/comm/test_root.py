"""Work of one rank for all: results and exceptions reach everybody; the log knows its rank."""

import logging
import time

import numpy as np
import pytest

import hpcpar as hp
from hpcpar.comm.root import RankFilter
from hpcpar.errors import ArgumentError, CheckpointError, RankFailed


class OddError(Exception):
    """A class that other ranks need not know."""


def test_the_result_of_the_root_is_everybodys(ranks):
    def body(group):
        root, calls = group.size - 1, []

        def work():
            calls.append(group.rank)
            return {"x": np.arange(3), "at": group.rank}

        got = hp.on_root(work, root=root, group=group)
        assert got["at"] == root
        assert got["x"].tolist() == [0, 1, 2]
        assert calls == ([root] if group.rank == root else [])

    ranks(body)


@pytest.mark.parametrize(
    ("error", "elsewhere"),
    [
        (ValueError("bad value"), ValueError),
        (KeyError("key"), KeyError),
        (CheckpointError("a file is missing"), CheckpointError),
        (FileNotFoundError(2, "no such file", "data"), FileNotFoundError),
        (StopIteration("end"), StopIteration),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), RuntimeError),
        (OddError("odd"), RuntimeError),
    ],
    ids=lambda x: x.__name__ if isinstance(x, type) else "",
)
def test_its_exception_too(ranks, error, elsewhere):
    def body(group):
        def work():
            raise error

        with pytest.raises(type(error) if group.rank == 0 else elsewhere) as caught:
            hp.on_root(work, group=group)
        if group.rank == 0:
            assert caught.value is error
        else:
            assert str(error).strip("'") in str(caught.value)
            assert "[on rank 0]" in str(caught.value)
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.sizes(1, 2, 3)
def test_the_root_goes_first(ranks):
    def body(group):
        with hp.root_first(root=group.size - 1, group=group):
            if group.rank == group.size - 1:
                time.sleep(0.05)
            began = time.monotonic_ns()  # one clock for all processes of a machine
        first = group.broadcast(began, root=group.size - 1)
        assert began >= first

    ranks(body)


@pytest.mark.sizes(1, 2, 3)
def test_if_the_root_fails_the_others_do_not_start(ranks):
    def body(group):
        ran = []
        with (
            pytest.raises(OSError if group.rank == 0 else RankFailed, match="disk full"),
            hp.root_first(group=group),
        ):
            ran.append(group.rank)
            raise OSError("disk full")
        assert ran == ([0] if group.rank == 0 else [])
        assert group.all_reduce(1) == group.size

    ranks(body)


def test_roots_are_checked(ranks):
    def body(group):
        for root in (-1, group.size, 0.0):
            with pytest.raises(ArgumentError, match=f"on_root: root {root!r}"):
                hp.on_root(lambda: 1, root=root, group=group)
            with (
                pytest.raises(ArgumentError, match=f"root_first: root {root!r}"),
                hp.root_first(root=root, group=group),
            ):
                pass
        assert group.all_reduce(1) == group.size

    ranks(body)


@pytest.mark.threads_only
@pytest.mark.sizes(2)
def test_waiting_for_the_root_has_no_deadline(ranks):
    def body(group):
        assert hp.on_root(lambda: time.sleep(0.6), group=group) is None
        with hp.root_first(group=group):
            time.sleep(0.6 * (group.rank == 0))
        assert group.is_patient is False

    ranks(body, timeout=0.3)


def test_the_log_knows_its_rank(ranks):
    def body(group):
        rows = []
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            record = logging.LogRecord("hpcpar", level, "", 1, "text", (), None)
            rows.append(RankFilter().filter(record))
            assert (record.rank, record.size) == (group.rank, group.size)
        assert rows == [group.rank == 0, group.rank == 0, True, True]

    ranks(body)
