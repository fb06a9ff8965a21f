"""Train a byte-level language model on text, data parallel over all ranks.

    python jobs/train_gpt.py                              one process
    mpiexec -n 2 python jobs/train_gpt.py                 two processes, the same losses
    mpiexec -n 2 python jobs/train_gpt.py --text book.txt --hidden 256 --out runs/book
    mpiexec -n 4 python jobs/train_gpt.py --resume        go on where runs/train_gpt ended

Without --text the model learns the source code of Python's standard library. Ctrl-C, SIGTERM and
--max-minutes save before leaving. OMP_NUM_THREADS is one core per rank unless you set it.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when NumPy is imported

import argparse
import hashlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from train_report import Report, Stop, make_report, plot_losses

import hpcpar as hp
from hpcpar import checkpoint, debug
from hpcpar.comm.sizes import uneven_slice
from hpcpar.data import Sampler, TextCorpus, read_text
from hpcpar.errors import ArgumentError, BackendUnavailable, CheckpointError
from hpcpar.metrics import Means
from hpcpar.nn import GPT, Ctx, cast, cross_entropy, cross_entropy_backward
from hpcpar.optim import SGD, AdamW, Optimizer, clip_grad_norm, warmup_cosine
from hpcpar.parallel import DDP, Cast, CommHook, Int8, LocalSGD, PowerSGD, TopK
from hpcpar.random import Key

VOCABULARY = 256
VALIDATION_WINDOWS = 64
PROMPT = b"\ndef "

#: What a checkpoint and the command line must agree on.
IDENTITY = (
    *("layers", "hidden", "heads", "seq", "dropout", "dtype", "optimizer", "batch", "seed"),
    "hook",
)

#: By name on the command line: communication hooks of data parallel training.
HOOKS: dict[str, Callable[[float], list[CommHook]]] = {
    "none": lambda momentum: [],
    "fp16": lambda momentum: [Cast("float16")],
    "bf16": lambda momentum: [Cast("bfloat16")],
    "int8": lambda momentum: [Int8()],
    "topk": lambda momentum: [TopK(0.01, start_step=10, momentum=momentum)],
    "powersgd": lambda momentum: [PowerSGD(2, start_step=10)],
    "localsgd": lambda momentum: [LocalSGD(4, start_step=10)],
}


class Parser(argparse.ArgumentParser):
    """Raises on bad arguments, so that all ranks leave in the same way; only rank 0 prints."""

    quiet = False

    def print_help(self, file: Any = None) -> None:
        """Print the help."""
        if not self.quiet:
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise ArgumentError(f"{message}. See --help")


def parse(arguments: Sequence[str] | None, quiet: bool = False) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(
        "train_gpt", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.quiet = quiet
    add = parser.add_argument
    add("--text", type=Path, help="file or folder to learn (default: the standard library)")
    add("--steps", type=_at_least(int, 1), default=400, help="steps in total (%(default)s)")
    add("--batch", type=_at_least(int, 1), default=16, help="sequences of all ranks (%(default)s)")
    add("--seq", type=_at_least(int, 1), default=64, help="bytes per sequence (%(default)s)")
    add("--layers", type=_at_least(int, 1), default=2, help="blocks (%(default)s)")
    add("--hidden", type=_at_least(int, 1), default=128, help="width (%(default)s)")
    add("--heads", type=_at_least(int, 1), default=4, help="attention heads (%(default)s)")
    add("--dropout", type=_at_least(float, 0), default=0.0, help="share (%(default)s)")
    add("--dtype", choices=("float32", "float64", "bfloat16"), default="float32")
    add("--optimizer", choices=("adamw", "sgd"), default="adamw")
    add("--lr", type=_at_least(float, 0), default=3e-3, help="highest rate (%(default)s)")
    add("--warmup", type=_at_least(int, 0), default=20, help="steps up to --lr (%(default)s)")
    add("--decay", type=_at_least(int, 1), help="step at which the rate is a tenth (never)")
    add("--momentum", type=_at_least(float, 0), default=0.9, help="of sgd (%(default)s)")
    add("--weight-decay", type=_at_least(float, 0), default=0.01, help="(%(default)s)")
    add(
        "--clip",
        type=_at_least(float, 0),
        default=1.0,
        help="mean gradients' norm, 0: off (%(default)s)",
    )
    add("--hook", choices=HOOKS, default="none", help="what compresses gradients (%(default)s)")
    add("--accumulate", type=_at_least(int, 1), default=1, help="micro-steps (%(default)s)")
    add("--uneven", action="store_true", help="ranks have other numbers of steps: DDP.join()")
    add("--seed", type=int, default=0, help="of weights, order and dropout (%(default)s)")
    add("--val-every", type=_at_least(int, 0), default=100, help="0: at the end (%(default)s)")
    add("--save-every", type=_at_least(int, 0), default=0, help="0: at the end (%(default)s)")
    add("--sample", type=_at_least(int, 0), default=300, help="bytes to write (%(default)s)")
    add("--max-minutes", type=_at_least(float, 0), help="save and leave after this time")
    add("--out", type=Path, default=Path("runs/train_gpt"), help="folder (%(default)s)")
    add("--resume", action="store_true", help="go on from the newest checkpoint in --out")
    return parser.parse_args(arguments)


def _at_least(kind: type[int] | type[float], least: int) -> Any:
    def convert(text: str) -> float:
        value = kind(text)
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} must be at least {least}")
        return value

    convert.__name__ = kind.__name__  # argparse names it in its message
    return convert


class Trainer:
    """A model, its optimizer and its place in the data. Collective over `group`.

    Parameters
    ----------
    config
        From `parse`.
    corpus
        The same on every rank.
    group
        Ranks that share each batch.
    """

    def __init__(self, config: argparse.Namespace, corpus: TextCorpus, group: hp.Group) -> None:
        self.config, self.corpus, self.group = config, corpus, group
        self.key = Key(config.seed)
        self.model = GPT(
            layers=config.layers,
            hidden=config.hidden,
            heads=config.heads,
            vocab=VOCABULARY,
            seq=config.seq,
            dropout=config.dropout,
        )
        params = cast(self.model.init(self.key.child("init")), config.dtype)
        early = config.momentum if config.hook == "topk" and config.optimizer == "sgd" else 0.0
        self.ddp = DDP(params, group=group, hooks=HOOKS[config.hook](early))
        self.optimizer = make_optimizer(config, config.momentum - early)
        self.optimizer_state = self.optimizer.init(self.ddp.params)
        self.schedule = warmup_cosine(
            config.lr,
            warmup=config.warmup,
            total=max(config.warmup + 1, config.decay or 0),
            floor=config.lr / 10 if config.decay else config.lr,
        )
        self.sampler = Sampler(len(corpus.train), config.batch, seed=config.seed)
        text = corpus.train.data.tobytes() + corpus.validation.data.tobytes()
        self.text = hashlib.sha256(text).hexdigest()
        self.losses: list[float] = []
        self.validation: dict[int, float] = {}
        self.skipped = False  # whether the last step was

    @property
    def step(self) -> int:
        """Steps done."""
        return self.sampler.step

    def train_step(self, stop: bool = False) -> tuple[float, bool]:
        """Take one step. Collective over the group.

        Returns
        -------
        loss
            Mean over the tokens of all ranks.
        stop
            Whether `stop` was true on any rank.
        """
        start, mine = self._batch_start(), self.sampler.take(self.group.rank, self.group.size)
        lost, count = self._accumulate(mine, start)
        self._update(self.schedule(self.step - 1))
        total, tokens, stops = self.group.all_reduce(np.array([lost, count, stop]))
        self.losses.append(float(total / tokens))
        return self.losses[-1], bool(stops)

    def train_unevenly(self, show: Callable[[float], None]) -> None:
        """Take all steps, on each rank as many as it has data for. Collective over the group.

        The last rank has half as many as the first. A step's loss is that of this rank.
        """
        means, whole = Means(self.group), self.config.steps
        mine = whole - whole // 2 * self.group.rank // max(1, self.group.size - 1)
        with self.ddp.join() as join:
            while self.step < mine:
                start = self._batch_start()
                indices = self.sampler.take(self.group.rank, self.group.size)
                lost, count = self._accumulate(indices, start)
                self._update(self.schedule(self.step - 1))
                self.losses.append(lost / max(1, count))
                means.update({"loss": self.losses[-1]}, weight=count)
                show(self.losses[-1])
        if join.last is not None:  # parameters came with the block, the optimizer's state has not
            state = self.group.broadcast_object(self.optimizer_state, root=join.last)
            self.optimizer_state.update(state)
        self.losses = [means.compute()["loss"]]
        self.sampler.step = whole

    def _accumulate(self, mine: Any, start: int) -> tuple[float, int]:
        """Make the gradients of some samples, in micro-steps; return their loss and tokens."""
        lost, count = 0.0, 0
        parts = np.array_split(mine, self.config.accumulate)
        for number, part in enumerate(parts):
            ctx = Ctx(True, self.key.child("dropout"), self.sampler.step - 1, start)
            x, y = self.corpus.train[part]
            is_last = number == len(parts) - 1
            silence = nullcontext() if is_last else self.ddp.no_sync()
            with silence, self.ddp.step(weight=y.size) as step:
                logits, saved = self.model.forward(self.ddp.params, x, ctx)
                loss, kept = cross_entropy(logits, y)
                dlogits = cross_entropy_backward(kept)
                self.model.backward(self.ddp.params, saved, dlogits, step.on_grad)
            lost, count, start = lost + float(loss) * y.size, count + y.size, start + len(part)
        return lost, count

    def _batch_start(self) -> int:
        """Return where this rank's part of the batch begins: dropout masks are global."""
        count = len(self.sampler.batch(self.step))
        return int(uneven_slice(count, self.group.size, self.group.rank).start)

    def _update(self, lr: float) -> None:
        """Move the parameters, the same on every rank; skip steps that overflowed."""
        grads = self.ddp.grads
        norm = clip_grad_norm(grads, self.config.clip or math.inf)
        self.skipped = not math.isfinite(norm)
        if not self.skipped:
            self.optimizer.update(self.ddp.params, grads, self.optimizer_state, lr=lr)
        for hook in self.ddp.hooks:
            if isinstance(hook, LocalSGD):
                hook.average(self.ddp.params)

    def validate(self) -> float:
        """Return the mean loss over some of the validation windows. Collective over the group."""
        windows = self.corpus.validation
        count = min(len(windows), VALIDATION_WINDOWS)
        spread = np.arange(count) * len(windows) // count
        mine = spread[uneven_slice(count, self.group.size, self.group.rank)]
        sums = np.zeros(2)
        for start in range(0, len(mine), self.config.batch):
            x, y = windows[mine[start : start + self.config.batch]]
            logits, _ = self.model.forward(self.ddp.params, x, Ctx())
            sums += [float(cross_entropy(logits, y)[0]) * y.size, y.size]
        total, tokens = self.group.all_reduce(sums)
        self.validation[self.step] = float(total / tokens)
        return self.validation[self.step]

    def sample(self, count: int) -> str:
        """Return text that the model writes. Local."""
        prompt = np.frombuffer(PROMPT, np.uint8).astype(np.int64)[None]
        key = self.key.child("sample")
        ids = self.model.generate(self.ddp.params, prompt, count, temperature=0.8, key=key)
        return bytes(ids[0].astype(np.uint8)).decode("utf-8", "replace")

    def state_dict(self) -> dict[str, Any]:
        """Return all that a run needs to go on with the same numbers. Collective."""
        parts: dict[str, Mapping[Any, Any]] = {
            "param": self.ddp.params,
            "optimizer": self.optimizer_state,
            "sampler": self.sampler.state_dict(),
            "validation": self.validation,
            "ddp": self.ddp.state_dict(),
            "config": {name: getattr(self.config, name) for name in IDENTITY},
        }
        state = {
            f"{part}.{name}": v for part, values in parts.items() for name, v in values.items()
        }
        return state | {"losses": np.array(self.losses), "text": self.text}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken, on any number of ranks."""
        for name in IDENTITY:
            mine, saved = getattr(self.config, name), state[f"config.{name}"]
            if mine != saved:
                raise ArgumentError(
                    f"--{name} {mine} differs from the checkpoint's {saved}; give that, or "
                    "another --out to start anew"
                )
        if self.text != state["text"]:
            raise ArgumentError(
                "--text differs from what the checkpoint was trained on; give that, or another "
                "--out to start anew"
            )
        self.sampler.load_state_dict(_part(state, "sampler"))
        self.losses = state["losses"].tolist()
        self.validation = {int(step): v for step, v in _part(state, "validation").items()}
        self.optimizer_state.update(_part(state, "optimizer"))
        for name, array in self.ddp.params.items():
            array[...] = state[f"param.{name}"]
        self.ddp.load_state_dict(_part(state, "ddp"))


def _part(state: dict[str, Any], part: str) -> dict[str, Any]:
    start = part + "."
    return {name.removeprefix(start): v for name, v in state.items() if name.startswith(start)}


def make_optimizer(config: argparse.Namespace, momentum: float) -> Optimizer:
    """Return the optimizer that the command line names; `momentum` is that of sgd."""
    if config.optimizer == "sgd":
        return SGD(momentum=momentum, weight_decay=config.weight_decay)
    no_decay = ("*.bias", "*norm*")
    return AdamW(beta2=0.99, weight_decay=config.weight_decay, no_decay=no_decay)


class Job:
    """A trainer and what it leaves in ``--out``. Collective over `group`."""

    def __init__(self, config: argparse.Namespace, group: hp.Group) -> None:
        if config.batch < group.size:
            raise ArgumentError(
                f"--batch {config.batch} must be at least the number of ranks, {group.size}"
            )
        self.config, self.group = config, group
        text = hp.on_root(lambda: read_text(config.text), group=group)
        corpus = TextCorpus(text, seq=config.seq)
        self.trainer = Trainer(config, corpus, group)
        self.checkpoints: Path = config.out / "checkpoints"
        self.saved = -1  # the step of the newest checkpoint
        if config.resume:
            self.trainer.load_state_dict(checkpoint.load(self.checkpoints, group=group).state)
            self.saved = self.trainer.step
        else:
            hp.on_root(self._put_aside, group=group)
            self.save()  # finds out now whether it can

    def _put_aside(self) -> None:
        """Keep the checkpoints of an earlier run in --out under another name."""
        if checkpoint.latest(self.checkpoints) is not None:
            names = (self.checkpoints.with_suffix(f".{n}") for n in itertools.count(1))
            self.checkpoints.rename(next(path for path in names if not path.exists()))

    def save(self) -> None:
        """Write a checkpoint, unless this step has one; the one before is kept as well."""
        state, step = self.trainer.state_dict(), self.trainer.step
        if step != self.saved:
            checkpoint.save(self.checkpoints, state, step=step, keep=2, group=self.group)
            self.saved = step

    def run(self, stop: Stop) -> None:
        """Train to the end, or until any rank wants to stop; then leave all results."""
        report = make_report(self.group.rank, self.trainer.step, self.config.steps)
        report.note(self._headline())
        try:
            self._train(stop, report)
            self._finish(report)
        finally:
            report.close()

    def _headline(self) -> str:
        count = sum(array.size for array in self.trainer.ddp.params.values())
        windows = len(self.trainer.corpus.train)
        return (
            f"{count:,} parameters, {windows:,} sequences of {self.config.seq} bytes, "
            f"{self.group.size} ranks, {self.trainer.sampler.steps_per_epoch:,} steps per epoch"
        )

    def _train(self, stop: Stop, report: Report) -> None:
        trainer, config = self.trainer, self.config
        if config.uneven:
            self._train_unevenly(report)
            return
        stopped = False
        while trainer.step < config.steps and not stopped:
            began = time.perf_counter()
            loss, stopped = trainer.train_step(bool(stop))
            seconds = time.perf_counter() - began
            tokens = config.batch * config.seq / seconds
            report.step(trainer.step, loss, tokens, trainer.ddp.stats().last)
            if trainer.skipped:
                report.note(f"step {trainer.step} skipped: its gradients are not finite")
            if _due(trainer.step, config.val_every) and trainer.step < config.steps:
                report.note(f"validation loss {trainer.validate():#.12g}")
            if _due(trainer.step, config.save_every):
                self.save()
        if stopped:
            report.note(f"stopped at step {trainer.step}; go on with --resume")

    def _train_unevenly(self, report: Report) -> None:
        began = time.perf_counter()

        def show(loss: float) -> None:
            seconds = time.perf_counter() - began
            done = self.trainer.step
            tokens = self.config.batch * self.config.seq * done / seconds
            report.step(done, loss, tokens, self.trainer.ddp.stats().last)

        self.trainer.train_unevenly(show)
        report.note(f"mean loss of all ranks and steps {self.trainer.losses[-1]:#.12g}")

    def _finish(self, report: Report) -> None:
        trainer, out = self.trainer, self.config.out
        self.save()
        report.note(f"validation loss {trainer.validate():#.12g}")
        report.note(hp.on_root(self._leave_pictures, group=self.group))
        debug.trace(out / "trace.json", group=self.group)
        report.note(f"checkpoint {checkpoint.latest(self.checkpoints)}")
        report.note(f"trace {out / 'trace.json'}, for ui.perfetto.dev")

    def _leave_pictures(self) -> str:
        """Write sample and loss plot; on rank 0."""
        sample = self.trainer.sample(self.config.sample)
        (self.config.out / "sample.txt").write_text(sample, encoding="utf-8")
        plot = self.config.out / "loss.png"
        drawn = plot_losses(plot, self.trainer.losses, self.trainer.validation)
        where = f"plot {plot}" if drawn else "no plot: matplotlib is not installed"
        return f"--- sample\n{sample}\n---\n{where}"


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; return the exit code, the same on every rank."""
    group = hp.init()
    try:
        config = parse(arguments, quiet=group.rank != 0)
        stop = Stop(config.max_minutes)
        job = Job(config, group)
    except (ArgumentError, BackendUnavailable, CheckpointError) as exc:
        if group.rank == 0:
            print(f"train_gpt: {exc}", file=sys.stderr, flush=True)
        group.barrier()  # nobody leaves before the message is out
        return 2
    with stop:
        job.run(stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
