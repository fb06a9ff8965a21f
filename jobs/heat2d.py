"""Heat in a square plate, whose rows or blocks lie on the ranks: a NumPy program over a mesh.

    hpcpar run -n 2 jobs/heat2d.py --side 512 --steps 2000
    mpiexec -n 4 python jobs/heat2d.py --mesh 2x2

The top edge is hot, the others are cold, and explicit steps of the heat equation follow. The time
loop is what a NumPy program has; slices are views, and only rows at the borders of parts travel.
A picture of the plate, and its mean over time, go to OUT/heat2d.png.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import hpcpar as hp


def main(words: list[str] | None = None) -> dict[str, float]:
    """Run the job; return its figures."""
    args = parser().parse_args(words)
    group = hp.init()
    shape = grid_of(args.mesh, group.size)
    mesh = hp.init_device_mesh(shape, ("rows", "columns")[: len(shape)], group=group)
    plate = hp.dtensor.zeros(
        (args.side, args.side), mesh, [hp.Shard(axis) for axis in range(len(shape))]
    )
    plate[0] = 1.0
    began, means = time.perf_counter(), []
    for step in range(args.steps):
        heat(plate, args.rate)
        if (step + 1) % max(1, args.steps // 20) == 0:
            means.append((step + 1, float(plate.mean())))
            say(group, f"step {means[-1][0]:6}  mean {means[-1][1]:.5f}")
    seconds = time.perf_counter() - began
    cells = args.side**2 * args.steps / max(seconds, 1e-9) / 1e6
    say(group, f"{args.steps} steps in {seconds:.2f} s, {cells:.0f} million cells a second")
    whole = plate.full()
    if group.rank == 0 and args.out is not None:
        drawn = draw(whole, means, Path(args.out))
        say(group, f"picture: {drawn}" if drawn else "no picture: matplotlib is not installed")
    return {"mean": float(whole.mean()), "seconds": seconds}


def heat(u: Any, rate: float) -> None:
    """Make one step in place, of a plate that NumPy or a mesh holds."""
    inner = u[1:-1, 1:-1]
    around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    u[1:-1, 1:-1] = inner + rate * (around - 4 * inner)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        epilog=__doc__.split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--side", type=int, default=256, help="cells of a side (default 256)")
    made.add_argument("--steps", type=int, default=1000, help="of time (default 1000)")
    made.add_argument("--rate", type=float, default=0.2, help="at most 0.25 (default 0.2)")
    made.add_argument("--mesh", help="ranks by rows and columns, as 2x2 (default all by rows)")
    made.add_argument("--out", default="runs/heat2d", help="folder of the picture")
    return made


def grid_of(text: str | None, size: int) -> tuple[int, ...]:
    """Return the mesh that the command line asks for."""
    try:
        shape = (size,) if text is None else tuple(int(n) for n in text.split("x"))
    except ValueError:
        raise SystemExit(f"--mesh {text}: give numbers of ranks, as 2x2") from None
    if len(shape) > 2 or int(np.prod(shape)) != size:
        raise SystemExit(f"--mesh {text}: {size} ranks must be rows times columns")
    return shape


def say(group: hp.Group, line: str) -> None:
    """Print on the first rank."""
    if group.rank == 0:
        print(line, flush=True)


def draw(plate: Any, means: list[tuple[int, float]], out: Path) -> Path | None:
    """Draw the plate and its mean; return the file, or None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1))
    shown = left.imshow(plate, cmap="inferno", vmin=0, vmax=1)
    left.set(title="temperature", xticks=[], yticks=[])
    figure.colorbar(shown, ax=left)
    right.plot(*zip(*means, strict=True))
    right.set(title="mean temperature", xlabel="step")
    right.grid(alpha=0.3)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "heat2d.png"
    figure.savefig(path, dpi=120)
    return path


if __name__ == "__main__":
    main()
