"""Reading text and cutting it into windows."""

import sysconfig
from pathlib import Path

import numpy as np
import pytest

from hpcpar.data import TextCorpus, Windows, read_text
from hpcpar.errors import ArgumentError


def text_of(x):
    return [row.astype(np.uint8).tobytes() for row in x]


def test_a_folder_is_read_in_sorted_order_without_hidden_files(tmp_path):
    for name, text in [("b.py", "2"), ("a/z.py", "1"), ("c", "3"), (".git/x", "!"), (".y", "!")]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_text(tmp_path) == b"123"
    assert read_text(str(tmp_path / "b.py")) == b"2"


def test_the_default_is_the_standard_library():
    text = read_text()
    library = Path(sysconfig.get_paths()["stdlib"])
    for module in ("abc.py", "json/decoder.py"):
        assert (library / module).read_bytes() in text
    assert Path(pytest.__file__).read_bytes() not in text
    assert text == read_text()
    assert 10**7 < len(text) < 3 * 10**7


def test_refuses_what_cannot_be_read(tmp_path):
    with pytest.raises(ArgumentError, match=r"no.txt' does not exist"):
        read_text(tmp_path / "no.txt")
    with pytest.raises(ArgumentError, match="holds no text"):
        read_text(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(ArgumentError, match="holds no text"):
        read_text(tmp_path / "empty")


def test_a_file_that_cannot_be_opened_is_named(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    (tmp_path / "secret").touch()
    with pytest.raises(ArgumentError, match=r"secret' cannot be read: .*Permission denied"):
        read_text(tmp_path / "secret")


def test_a_name_that_no_file_can_have_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"cannot be read: .*File name too long"):
        read_text(tmp_path / ("a" * 300))


def test_windows_follow_each_other_and_targets_are_shifted_by_one():
    windows = Windows(np.frombuffer(b"0123456789ab", np.uint8), 3)
    assert len(windows) == 3
    x, y = windows[[2, 0]]
    assert (text_of(x), text_of(y)) == ([b"678", b"012"], [b"789", b"123"])
    assert x.dtype == y.dtype == np.int64
    assert windows[np.array([], np.int64)][0].shape == (0, 3)
    assert len(Windows(np.zeros(0, np.uint8), 3)) == 0


def test_no_byte_is_a_target_in_both_parts():
    text = bytes(range(101))
    corpus = TextCorpus(text, seq=10, validation=0.3)
    assert (len(corpus.train), len(corpus.validation)) == (7, 3)
    trained = corpus.train[range(7)][1].ravel().tolist()
    validated = corpus.validation[range(3)][1].ravel().tolist()
    assert trained + validated == list(range(1, 101))


@pytest.mark.parametrize(("share", "held"), [(0.0, 1), (0.01, 1), (0.5, 2), (0.99, 3)])
def test_both_parts_have_at_least_one_window(share, held):
    corpus = TextCorpus(bytes(41), seq=10, validation=share)
    assert (len(corpus.train), len(corpus.validation)) == (4 - held, held)


def test_refuses_what_does_not_fit():
    with pytest.raises(ArgumentError, match="20 bytes, seq 10 needs at least 21"):
        TextCorpus(bytes(20), seq=10)
    with pytest.raises(ArgumentError, match="seq 0 must be at least 1"):
        TextCorpus(bytes(20), seq=0)
    with pytest.raises(ArgumentError, match=r"validation 1.0 must be in \[0, 1\)"):
        TextCorpus(bytes(99), seq=2, validation=1.0)
