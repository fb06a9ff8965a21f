"""What the training job shows, and how it learns that it should stop."""

import io
import os
import signal
import sys
import threading
import time

import pytest

from hpcpar.parallel import StepTimes

TIMES = StepTimes(seconds=0.4, waiting=0.1, communicating=0.2, sent=10**9)


@pytest.fixture
def report(train_gpt):
    return sys.modules["train_report"]


def test_other_ranks_show_nothing(report, capsys):
    silent = report.make_report(1, 0, 10)
    silent.step(1, 2.5, 100.0, TIMES)
    silent.note("hello")
    silent.close()
    assert capsys.readouterr() == ("", "")


def test_lines_where_there_is_no_terminal(report, capsys):
    lines = report.make_report(0, 0, 10)
    lines.step(3, 2.5, 100.0, TIMES)
    lines.note("hello")
    lines.close()
    assert capsys.readouterr().out == "step 3 loss 2.50000000000\nhello\n"


def test_a_bar_on_a_terminal(report, capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "150")
    bar = report.make_report(0, 0, 10)
    assert isinstance(bar, report.Bar)
    bar.note("[hello]")
    bar.step(4, 2.5, 1234.0, TIMES)
    bar.close()
    shown = capsys.readouterr().out
    for text in (
        "[hello]",
        "4/10",
        "loss 2.5000",
        "1,234 tokens/s",
        "waiting 25%, 50% hidden, 5.0 GB/s",
    ):
        assert text in shown


def test_a_bar_where_the_launcher_is_on_a_terminal(report, capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("HPCPAR_COLUMNS", "120")
    bar = report.make_report(0, 0, 10)
    assert isinstance(bar, report.Bar)
    bar.step(4, 2.5, 1234.0, TIMES)
    bar.close()
    shown = capsys.readouterr().out
    assert "\x1b[" in shown
    assert "waiting 25%" in shown


def test_no_text_can_move_the_cursor_or_fail_to_print(report, monkeypatch):
    assert report.printable("a\tb\nc\x1b[2J\r") == "a\tb\nc\ufffd[2J\ufffd"
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert report.printable("d\u00e9") == "d?"


def test_lines_where_rich_is_missing(report, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert isinstance(report.make_report(0, 0, 10), report.Lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sets_the_flag_and_the_next_acts_as_before(report, number):
    assert threading.current_thread() is threading.main_thread()
    before, came = signal.getsignal(number), []
    signal.signal(number, lambda *_: came.append(1))
    try:
        with report.Stop(None) as stop:
            assert not stop
            os.kill(os.getpid(), number)
            assert stop
            assert came == []
            os.kill(os.getpid(), number)
            assert came == [1]
        os.kill(os.getpid(), number)
        assert came == [1, 1]
    finally:
        signal.signal(number, before)


def test_stops_when_the_time_is_over(report):
    assert not report.Stop(10)
    stop = report.Stop(0)
    time.sleep(0.001)
    assert stop


def test_no_plot_without_matplotlib(report, tmp_path, monkeypatch):
    assert report.plot_losses(tmp_path / "a.png", [3.0, 2.0], {2: 2.5})
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not report.plot_losses(tmp_path / "b.png", [3.0], {})
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
