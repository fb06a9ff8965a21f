"""Principal components of a table whose rows lie on the ranks.

    hpcpar run -n 2 jobs/pca.py                     # scikit-learn's handwritten digits
    mpiexec -n 4 python jobs/pca.py --data table.npy --components 5

Columns are centred and scaled, the covariance is a product of the table with itself that only
leaves a small sum to reduce, and each rank projects its own rows. The components, what they explain
and the projected rows go to OUT/pca.npz, a picture of the first two to OUT/pca.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import hpcpar as hp


def main(words: list[str] | None = None) -> dict[str, Any]:
    """Run the job; return its figures."""
    args = parser().parse_args(words)
    group = hp.init()
    table, labels = read(args.data) if group.rank == 0 else (None, None)
    mesh = hp.init_device_mesh((group.size,), ("rows",), group=group)
    x = hp.distribute(table, mesh, hp.Shard(0), root=0)
    components, explained, projected = principal(x, args.components)
    rows = projected.full()
    if group.rank == 0:
        print(f"{x.shape[0]} rows of {x.shape[1]} columns on {group.size} ranks")
        for number, share in enumerate(explained, 1):
            print(f"component {number}: {100 * share:5.1f} % of the variance")
        out = Path(args.out)
        out.mkdir(parents=True, exist_ok=True)
        np.savez(out / "pca.npz", components=components, explained=explained, projected=rows)
        drawn = draw(rows, labels, out / "pca.png")
        print(f"results: {out}" if drawn else f"results: {out}, no picture: no matplotlib")
    return {"components": components, "explained": explained, "projected": rows}


def principal(x: Any, num: int) -> tuple[Any, Any, Any]:
    """Return components as rows, their shares of the variance, and the projected table.

    `x` may be NumPy's or lie on a mesh; the covariance of its columns is the same everywhere.
    """
    spread = x.std(axis=0)
    scaled = (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    product = scaled.T @ scaled / x.shape[0]
    covariance = product.full() if isinstance(product, hp.DTensor) else product
    values, vectors = np.linalg.eigh(covariance)
    chosen = vectors[:, ::-1][:, :num]
    chosen = chosen * np.sign(chosen[np.abs(chosen).argmax(axis=0), range(chosen.shape[1])])
    with hp.dtensor.implicit_replication():
        projected = scaled @ chosen
    return chosen.T, values[::-1][:num] / values.sum(), projected


def read(path: str | None) -> tuple[Any, Any]:
    """Return the table, and labels where there are some."""
    if path is not None:
        table = np.load(path)
        if table.ndim != 2 or table.dtype.kind not in "biuf":
            raise SystemExit(f"--data {path}: a table of numbers, not {table.dtype} {table.shape}")
        return table.astype(np.float64), None
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit("scikit-learn is not installed: give --data table.npy") from None
    digits = load_digits()
    return digits.data, digits.target


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        epilog=__doc__.split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--data", help="a table in a .npy file (default scikit-learn's digits)")
    made.add_argument("--components", type=int, default=2, help="how many (default 2)")
    made.add_argument("--out", default="runs/pca", help="folder of the results")
    return made


def draw(rows: Any, labels: Any, path: Path) -> bool:
    """Draw the first two components; return False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.add_subplot()
    second = rows[:, 1] if rows.shape[1] > 1 else np.zeros(len(rows))
    shown = axes.scatter(
        rows[:, 0], second, c=labels, s=8, cmap="tab10" if labels is not None else None
    )
    if labels is not None:
        figure.colorbar(shown, ax=axes, label="label")
    axes.set(xlabel="component 1", ylabel="component 2")
    figure.savefig(path, dpi=120)
    return True


if __name__ == "__main__":
    main()
