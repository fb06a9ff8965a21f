"""A record in memory of the caller, and who reads it while it is written."""

import gc
import mmap
import os
import random
import subprocess
import sys

import numpy as np
import pytest

from hpcpar._core import HotCall, Recorder, RecordReader

RECORD, GROUP, GROUPS = 128, 1088, 4096  # bytes of a record and of a group; most groups


def size_of(capacity):
    return 64 + capacity * RECORD + GROUPS * GROUP


def shared(capacity=8):
    return mmap.mmap(-1, -(-size_of(capacity) // 4096) * 4096)


def write(recorder, slot=0, verb=2, count=10, **sent):
    ticket = recorder.begin(slot, verb, 12, count, 4, -1)
    recorder.sent(ticket, count, 2 * count, 1)
    recorder.end(ticket)
    return ticket


def test_a_reader_sees_what_the_writer_does():
    memory = shared()
    recorder = Recorder(8, memory)
    reader = RecordReader(memory)
    assert (reader.groups(), reader.last(9), reader.totals()) == ([], [], [])
    assert reader.oldest_open() is None
    recorder.add_group("world", 1, 4)
    recorder.add_group("täglich", 0, 2)
    assert reader.groups() == [("world", 1, 4, 0), ("täglich", 0, 2, 0)]
    write(recorder)
    recorder.begin(1, 3, 0, 0, 1, -1)
    for method, *args in [("groups",), ("last", 9), ("totals",), ("oldest_open",), ("seq", 1)]:
        assert getattr(reader, method)(*args) == getattr(recorder, method)(*args)
    assert [entry[:3] for entry in reader.last(9)] == [(0, 0, 2), (1, 0, 3)]
    assert reader.oldest_open()[:3] == (1, 0, 3)
    assert reader.seq(1) == 1
    with pytest.raises(ValueError, match="seq: slot 2 is not a group"):
        reader.seq(2)
    with pytest.raises(ValueError, match="last: n is -1"):
        reader.last(-1)


def test_a_name_that_is_cut_in_a_letter_is_readable():
    recorder = Recorder()
    recorder.add_group("x" * 46 + "ä", 0, 1)
    assert recorder.groups() == [("x" * 46 + "\ufffd", 0, 1, 0)]


def test_memory_is_asked_for_before_it_is_used():
    asked = []
    recorder = Recorder(8, shared(), reserve=asked.append)
    assert asked == [64 + 8 * RECORD]
    recorder.add_group("a", 0, 1)
    recorder.add_group("b", 0, 1)
    assert asked[1:] == [64 + 8 * RECORD + GROUP, 64 + 8 * RECORD + 2 * GROUP]


def test_without_memory_nothing_is_written():
    def refuse(nbytes):
        if nbytes > 64 + 8 * RECORD:
            raise MemoryError("all is taken")

    recorder = Recorder(8, shared(), refuse)
    with pytest.raises(MemoryError, match="all is taken"):
        recorder.add_group("a", 0, 1)
    assert recorder.groups() == []
    with pytest.raises(ZeroDivisionError):
        Recorder(8, shared(), lambda nbytes: 1 / 0)


def test_memory_lives_as_long_as_a_record_of_it():
    memory = shared()
    recorder = Recorder(8, memory)
    reader = RecordReader(memory)
    recorder.add_group("world", 0, 1)
    with pytest.raises(BufferError):
        memory.close()
    del memory
    gc.collect()
    write(recorder)
    assert len(reader.last(1)) == 1
    again = shared()
    del recorder
    Recorder(8, again)
    again.close()  # nobody holds it


def test_unfit_memory_is_refused():
    with pytest.raises(ValueError, match=rf"memory of 4096 bytes needs {size_of(8)}, on a cache"):
        Recorder(8, bytearray(4096))
    with pytest.raises(ValueError, match="on a cache line"):
        Recorder(8, memoryview(shared())[8 : 8 + size_of(8)])
    with pytest.raises(BufferError):
        Recorder(8, bytes(size_of(8)))
    with pytest.raises(TypeError):
        Recorder(8, "memory")


def test_what_is_no_record_is_refused():
    memory = shared()
    with pytest.raises(ValueError, match="RecordReader: buffer holds no record of this version"):
        RecordReader(memory)
    Recorder(8, memory)
    with pytest.raises(ValueError, match=r"RecordReader: buffer of \d+ bytes is too short"):
        RecordReader(memoryview(memory)[: size_of(8) - 1])
    with pytest.raises(ValueError, match="buffer of 3 bytes is too short"):
        RecordReader(b"abc")
    for capacity in (0, 3, 1 << 40):
        memory[8:16] = capacity.to_bytes(8, "little")
        with pytest.raises(ValueError, match="no record of this version"):
            RecordReader(memory)


def test_a_reader_does_not_write():
    memory = shared()
    Recorder(8, memory).add_group("world", 0, 1)
    reader = RecordReader(memory)
    assert not {"begin", "end", "sent", "add_group"} & set(dir(reader))
    with pytest.raises(TypeError, match="recorder is no Recorder"):
        HotCall(reader, 0)


def test_a_read_only_mapping_is_enough():
    fd = os.memfd_create("hpcpar-test")
    os.ftruncate(fd, size_of(8))
    recorder = Recorder(8, mmap.mmap(fd, size_of(8)))
    recorder.add_group("world", 0, 1)
    reader = RecordReader(mmap.mmap(fd, size_of(8), prot=mmap.PROT_READ))
    os.close(fd)
    write(recorder)
    assert len(reader.last(8)) == 1


@pytest.mark.parametrize("seed", range(20))
def test_garbage_does_no_harm(seed):
    draw = random.Random(seed)
    memory = shared()
    recorder = Recorder(8, memory)
    for i in range(3):
        recorder.add_group(f"g{i}", 0, 1)
    for _ in range(12):
        write(recorder, draw.randrange(3))
    reader = RecordReader(memory)
    view = np.frombuffer(memory, np.uint8)
    where = draw.sample(range(8, 64 + 8 * RECORD + 3 * GROUP), draw.choice([1, 20, 500]))
    view[where] = np.frombuffer(draw.randbytes(len(where)), np.uint8)
    entries, groups = reader.last(1 << 40), reader.groups()
    assert len(entries) <= 8
    assert len(groups) <= GROUPS
    assert all(entry[0] < len(groups) and entry[2] < 32 for entry in entries)
    reader.oldest_open()
    assert all(total[0] < len(groups) for total in reader.totals())


WRITER = """
import mmap, sys
from hpcpar._core import Recorder
recorder = Recorder(4, mmap.mmap(int(sys.argv[1]), int(sys.argv[2])))
recorder.add_group("world", 0, 1)
print("begins", flush=True)
count = 0
while True:
    count += 1
    ticket = recorder.begin(0, count % 16, 12, count, 4, -1)
    recorder.sent(ticket, count, 2 * count, 1)
    recorder.end(ticket)
"""


def test_records_are_whole_while_another_process_writes():
    fd = os.memfd_create("hpcpar-test")
    os.ftruncate(fd, size_of(4))
    memory = mmap.mmap(fd, size_of(4), prot=mmap.PROT_READ)
    command = [sys.executable, "-c", WRITER, str(fd), str(size_of(4))]
    with subprocess.Popen(command, pass_fds=[fd], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout.readline() == b"begins\n"
            reader, seen = RecordReader(memory), set()
            while len(seen) < 2000:
                for _, seq, verb, _, count, *_, end, _, sent, received, _ in reader.last(4):
                    assert (count, verb) == (seq + 1, (seq + 1) % 16)
                    assert not end or (sent, received) == (count, 2 * count)
                    seen.add(seq)
        finally:
            writer.kill()
    os.close(fd)
    assert len(reader.last(4)) >= 3  # it was killed anywhere, once
