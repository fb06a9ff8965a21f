"""Switch points of the node engine: tables that are kept, rank 0's word, bits that stay."""

import json
import os

import numpy as np
import pytest

from hpcpar.comm import tuning, tuning_file, world
from hpcpar.comm.tuning import Tuning
from hpcpar.errors import ArgumentError

OTHER = Tuning(chunk=65536, copy_chunk=16384, far_ns=1, stream=1, lend=1)
CHUNKS = Tuning(lend=2**62)


@pytest.mark.sizes(2, 3)
def test_bits_do_not_depend_on_the_table(ranks):
    """Chunks, slices and the way through the caches differ, the order of additions does not."""

    def results(group, table):
        tuning.apply(group, table)
        group.barrier()
        found = []
        for count in (3, 5_000, 300_001, 900_000):
            x = np.random.default_rng([group.rank, count]).standard_normal(count)
            y = x.astype(np.float32)
            found += [group.all_reduce(x), group.all_reduce(y, "mean"), group.scan(y, "prod")]
            found += [group.reduce_scatter(y), group.all_gather(x), group.all_to_all(y)]
            found += [group.broadcast(x, root=1), group.all_reduce(y.astype(np.float16))]
            out = x.copy()
            found.append(group.all_reduce(out, out=out))
            right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
            found.append(group.sendrecv(x, right, left))
        group.barrier()
        return [a.tobytes() for a in found]

    def body(group):
        wanted = results(group, CHUNKS)
        assert results(group, OTHER) == wanted
        assert results(group, Tuning()) == wanted

    ranks(body)


def test_tables_are_kept_by_processor(tmp_path, monkeypatch):
    path = tmp_path / "made" / "tuning.json"
    env = {"HPCPAR_TUNING": str(path)}
    monkeypatch.setattr(tuning_file, "cpu_name", lambda: "one")
    tuning_file.save(str(path), OTHER)
    monkeypatch.setattr(tuning_file, "cpu_name", lambda: "two")
    assert tuning_file.load(env) == tuning.built_in()
    tuning_file.save(str(path), Tuning(far_ns=7))
    assert tuning_file.load(env) == Tuning(far_ns=7)
    assert tuning_file.read(str(path)) == {"one": OTHER, "two": Tuning(far_ns=7)}
    assert os.listdir(path.parent) == ["tuning.json"]
    assert tuning_file.load({"HPCPAR_TUNING": "off"}) == tuning.built_in()
    assert tuning_file.where_kept({"HPCPAR_TUNING": "off"}) is None


def test_where_tables_are_kept():
    assert str(tuning_file.where_kept({"HOME": "/h"})) == "/h/.cache/hpcpar/tuning.json"
    assert str(tuning_file.where_kept({"XDG_CACHE_HOME": "/c", "HOME": "/h"})) == (
        "/c/hpcpar/tuning.json"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 1, "cpus": {}}',
        '{"version": 2, "cpus": {"x": {"chunk": 1}}}',
        json.dumps(
            {
                "version": 2,
                "cpus": {"x": {"chunk": 7, "copy_chunk": 7, "far_ns": 1, "stream": 1, "lend": 1}},
            }
        ),
    ],
)
def test_a_file_that_holds_no_tables(tmp_path, text, caplog):
    path = tmp_path / "hpcpar" / "tuning.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ArgumentError, match=r"HPCPAR_TUNING: .*tun"):
        tuning_file.load({"HPCPAR_TUNING": str(path)})
    assert tuning_file.load({"XDG_CACHE_HOME": str(tmp_path)}) == tuning.built_in()
    (said,) = caplog.records
    assert "is left" in said.getMessage()
    tuning_file.save(str(path), OTHER)
    assert list(tuning_file.read(str(path)).values()) == [OTHER]


def test_a_named_file_must_be_there(tmp_path):
    with pytest.raises(ArgumentError, match=r"HPCPAR_TUNING: no file .*hpcpar tune"):
        tuning_file.load({"HPCPAR_TUNING": str(tmp_path / "none.json")})
    assert tuning_file.load({"XDG_CACHE_HOME": str(tmp_path)}) == tuning.built_in()


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"chunk": 0}, "chunk 0 must be bytes"),
        ({"chunk": 1 << 20}, "chunk 1048576 must be bytes"),
        ({"copy_chunk": 16400}, "copy_chunk 16400 must be bytes"),
        ({"copy_chunk": True}, "copy_chunk True"),
        ({"chunk": 65536}, "copy_chunk 131072 must be <= chunk 65536"),
        ({"far_ns": 0}, "far_ns 0 must be"),
        ({"stream": 1.5}, "stream 1.5 must be"),
        ({"lend": 0}, "lend 0 must be"),
    ],
)
def test_what_is_no_table_is_refused(wrong, match):
    with pytest.raises(ArgumentError, match=match):
        Tuning(**wrong)


class Rows:
    """A bootstrap whose rank 0 says something else than this rank."""

    rank = 1

    def __init__(self, first):
        self.first = first

    def all_gather(self, mine):
        return [self.first, mine]


def test_rank_0_decides(monkeypatch, tmp_path):
    monkeypatch.setenv("HPCPAR_TUNING", str(tmp_path / "none.json"))  # of this rank: no matter
    said = " ".join(map(str, OTHER.as_tuple())).encode()
    assert world._agree_on_tuning(Rows(said)) == OTHER
    with pytest.raises(ArgumentError, match=r"^HPCPAR_TUNING: no file x \(rank 0\)$"):
        world._agree_on_tuning(Rows(b"HPCPAR_TUNING: no file x"))
