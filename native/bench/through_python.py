"""What the core costs from Python: medians of interleaved rounds, ratios to NumPy.

Run with an interpreter that can import hpcpar: ``python native/bench/through_python.py``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from hpcpar import _core


def medians(rounds: int, *bodies: Callable[[], object]) -> list[float]:
    """Seconds per call of each body, measured in turns so that noise hits all alike."""
    times: list[list[float]] = [[] for _ in bodies]
    for body in bodies:
        body()
    for _ in range(rounds):
        for body, kept in zip(bodies, times, strict=True):
            start = time.perf_counter()
            body()
            kept.append(time.perf_counter() - start)
    return [statistics.median(kept) for kept in times]


def gpt_shapes(layers: int, width: int, vocabulary: int) -> list[tuple[int, ...]]:
    """Weight matrices of a GPT: embeddings, attention, feed-forward."""
    block = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    return [(vocabulary, width), (256, width), *(layers * block)]


def bench_pack(name: str, shapes: list[tuple[int, ...]], rounds: int) -> None:
    """Compare packing with a loop of np.copyto into views of the same buffer."""
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    plan = _core.PackPlan([(x.shape, x.dtype) for x in arrays], dtype=np.float32)
    flat = np.zeros(plan.count, np.float32)
    views = [
        flat[o // 4 : o // 4 + x.size].reshape(x.shape)
        for o, x in zip(plan.offsets, arrays, strict=True)
    ]

    def loop() -> None:
        for view, x in zip(views, arrays, strict=True):
            np.copyto(view, x)

    pack, copies, unpack = medians(
        rounds,
        lambda: plan.pack(arrays, flat),
        loop,
        lambda: plan.unpack(flat, arrays),
    )
    print(
        f"{name}: {len(arrays)} arrays, {plan.nbytes / 2**20:.1f} MiB: pack {pack * 1e6:.1f} us, "
        f"unpack {unpack * 1e6:.1f} us, np.copyto loop {copies * 1e6:.1f} us, "
        f"pack speed / copyto speed {copies / pack:.2f}"
    )


def bench_reduce(nbytes: int, rounds: int) -> None:
    """Compare a sum of two arrays with np.add."""
    a, b, out = (np.ones(nbytes // 4, np.float32) for _ in range(3))
    ours, numpy = medians(
        rounds, lambda: _core.reduce(out, [a, b], "sum"), lambda: np.add(a, b, out=out)
    )
    print(
        f"reduce 2 x float32, {nbytes} bytes: {ours * 1e6:.2f} us, np.add {numpy * 1e6:.2f} us, "
        f"speed ratio {numpy / ours:.2f}"
    )


def bench_record(calls: int, rounds: int) -> None:
    """Time one record, and two calls that record nothing."""
    recorder = _core.Recorder()
    slot = recorder.add_group("world", 0, 1)

    def record() -> None:
        begin, end = recorder.begin, recorder.end
        for _ in range(calls):
            end(begin(slot, 1, 11, 100, 4, -1))

    def nothing() -> None:
        begin, end = recorder.seq, recorder.seq
        for _ in range(calls):
            end(begin(slot) and slot)

    both, empty = medians(rounds, record, nothing)
    both, empty = both / calls * 1e9, empty / calls * 1e9
    print(f"record begin + end: {both:.0f} ns, two calls without effect {empty:.0f} ns")


if __name__ == "__main__":
    bench_pack("GPT gradients", gpt_shapes(6, 384, 8192), 41)
    bench_pack("64 KiB arrays", [(16384,)] * 256, 101)
    bench_pack("1 KiB arrays", [(256,)] * 1000, 201)
    for size in (4096, 65536, 1 << 20, 25 << 20):
        bench_reduce(size, 41 if size > 1 << 22 else 401)
    bench_record(2000, 51)
