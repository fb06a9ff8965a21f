"""Modules of torch trained by our DDP: its parameters and gradients are the tensors' own memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter, is_, ne
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch

from .._arrays import Array
from .._core import PackPlan
from ..errors import ArgumentError
from ..parallel import DDP, Step
from ..parallel.buffers import Layout
from .torch_tensors import array_on, tensor_on

__all__ = ["AttachedModule", "attach", "buffers_of", "params_of"]

_SMALL = 1 << 16  # bytes up to which a gradient is added up in its bucket
_LARGE = 1 << 20  # bytes from which it is copied past the caches
_SHARED = (torch.float32, torch.float64, torch.float16)  # of which NumPy sees the memory
_grad, _version = attrgetter("grad"), attrgetter("_version")


def params_of(module: torch.nn.Module) -> dict[str, Array]:
    """Return the parameters to train as arrays on their memory, for `DDP`. Local.

    Parameters
    ----------
    module
        On the CPU; those that need no gradient are left out.

    Raises
    ------
    ArgumentError
        A parameter that is not contiguous, or not on the CPU.
    """
    found = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return {name: array_on(name, p.detach()) for name, p in found.items()}


def buffers_of(module: torch.nn.Module) -> dict[str, Array]:
    """Return the buffers, such as running means, as arrays on their memory, for `DDP`. Local."""
    return {name: array_on(name, b.detach()) for name, b in module.named_buffers()}


def attach(ddp: DDP, module: torch.nn.Module) -> AttachedModule:
    """Let `ddp` take a module's gradients as its backward pass makes them. Local.

    Parameters
    ----------
    ddp
        Made with ``params_of(module)``.
    module
        Its hooks are set; take them back with `AttachedModule.detach`.

    Returns
    -------
    AttachedModule
        Whose `step` is the context of a forward and backward pass. After it ``p.grad`` of each
        parameter is its averaged gradient: a view of the bucket, not a copy, until the next step.
        Within the step leave ``p.grad`` alone: an optimizer's ``zero_grad`` goes before it.

    Raises
    ------
    ArgumentError
        The module's parameters are not those of `ddp`.

    Examples
    --------
    >>> import torch
    >>> from hpcpar.interop.torch import attach, params_of
    >>> from hpcpar.parallel import DDP
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> attached = attach(DDP(params_of(model)), model)
    >>> with attached.step():
    ...     model(torch.ones(3, 2)).sum().backward()
    >>> model.weight.grad
    tensor([[3., 3.]])
    """
    return AttachedModule(ddp, module)


class AttachedModule:
    """A module whose gradients go to a `DDP`; made by `attach`.

    Large gradients move into their buckets as they come. Small ones are added up where they lie
    in their bucket, by torch itself, and reported together with the last of the bucket: after the
    first step only that one has a hook, for a call of Python costs as much as several gradients.
    """

    def __init__(self, ddp: DDP, module: torch.nn.Module) -> None:
        self._ddp = ddp
        self._params = {name: p for name, p in module.named_parameters() if p.requires_grad}
        missing = ddp.params.keys() ^ self._params.keys()
        if missing:
            raise ArgumentError(
                f"attach: {sorted(missing)[0]!r} is a parameter of the DDP or of the module, not "
                "of both. Make the DDP with params_of(module)."
            )
        self._step: Step | None = None
        self._layout: Layout | None = None
        self._places: dict[str, tuple[Array, torch.Tensor]] = {}
        # In static steps each pass counts: all have hooks of their own.
        small = {name for name, p in self._params.items() if p.nbytes <= _SMALL}
        self._small: set[str] = set() if ddp.static else small
        self._large = self._params.keys() - self._small
        self._watches_all = True
        self._small_of: list[_SmallOnes] = []  # by bucket
        self._arrival: dict[str, int] = {}  # of small ones, in the first step
        self._due: list[int] = []
        self._hooks: dict[str, Any] = {}
        for name in self._params:
            self._watch(name, self._one_came if name in self._large else self._small_came)

    def _watch(self, name: str, came: Callable[[str], None]) -> None:
        """Have ``came(name)`` called when the gradient is there."""
        p = self._params[name]
        self._hooks[name] = p.register_post_accumulate_grad_hook(lambda _: came(name))

    def _one_came(self, name: str) -> None:
        if self._step is not None:
            self._step.on_grad(name, partial(self._fill_one, name))
            self._params[name].grad = None

    def _small_came(self, name: str) -> None:
        """Take note of the order; report a bucket's small gradients once all have come."""
        if self._step is None or name in self._arrival:  # torch has added to what waits
            return
        self._arrival[name] = len(self._arrival)
        index = self._step.layout.bucket_of[name]
        self._due[index] -= 1
        if not self._due[index]:
            self._report_new(self._step, self._small_of[index])

    def _last_came(self, name: str) -> None:
        """Report all small gradients of the bucket that ends with this one."""
        if self._step is not None:
            self._report_new(self._step, self._small_of[self._step.layout.bucket_of[name]])

    def _report_new(self, step: Step, some: _SmallOnes) -> None:
        """Report those gradients that have come since they were looked at, in the first order."""
        added, others = some.take_new()
        if self._watches_all:
            for names in (added, others):
                names.sort(key=lambda name: self._arrival.get(name, -1))
        if added:
            step.on_grads(added, _leave)
        if others:
            self._move(step, others)

    def _move(self, step: Step, names: Sequence[str]) -> None:
        """Report gradients that lie elsewhere, and copy them together."""
        step.on_grads(names, self._fill)
        for name in names:  # the next layer's may have the memory
            self._params[name].grad = None

    def _fill_one(self, name: str, out: Array | None = None, add: bool = False) -> Array:
        if out is None:  # wanted apart, to be scaled
            assert self._layout is not None
            out = np.empty_like(self._layout.views[name])
        if add or not _streamed(self._params[name].grad, out):
            self._fill([name], [out], add)
        return out

    def _fill(self, names: Sequence[str], outs: Sequence[Array], add: bool) -> None:
        places = [self._place(name, out) for name, out in zip(names, outs, strict=True)]
        grads: list[Any] = [self._params[name].grad for name in names]
        with torch.no_grad():
            (torch._foreach_add_ if add else torch._foreach_copy_)(places, grads)

    def _place(self, name: str, view: Array) -> torch.Tensor:
        """Return the tensor on the memory of a gradient."""
        known = self._places.get(name)
        if known is None or known[0] is not view:  # the buckets have been laid out anew
            known = self._places[name] = (view, tensor_on(view))
        return known[1]

    def step(self, weight: float | None = None, **options: Any) -> _ModuleStep:
        """Return the context of one forward and backward pass; as `DDP.step`."""
        return _ModuleStep(self, self._ddp.step(weight, **options))

    def detach(self) -> None:
        """Take the hooks back. Local."""
        for hook in self._hooks.values():
            hook.remove()

    def begin(self, step: Step) -> None:
        """Send gradients to `step`; none of an earlier one may be added to."""
        is_new = step.layout is not self._layout
        if is_new:
            self._lay_out(step.layout)
        if self._arrival and (is_new or self._watches_all):
            self._watch_last_ones()
        self._due = [len(some.params) for some in self._small_of]
        adds_here = step.begin_sums(self._stretches)
        for some in self._small_of:
            some.begin(adds_here)
        for name in self._large:
            self._params[name].grad = None
        self._step = step

    def _lay_out(self, layout: Layout) -> None:
        """Take note of where gradients lie."""
        self._layout = layout
        self._stretches = layout.stretches(self._small)
        small = [[n for n in bucket.names if n in self._small] for bucket in layout.buckets]
        self._small_of = [
            _SmallOnes({n: (self._params[n], self._place(n, layout.views[n])) for n in names})
            for names in small
        ]

    def _watch_last_ones(self) -> None:
        """Leave hooks on the large gradients, and on the last small one of each bucket."""
        self._watches_all = False
        for name in self._small & self._hooks.keys():
            self._hooks.pop(name).remove()
        for some in self._small_of:
            names = [name for name in some.names if self._params[name].requires_grad]
            if names:
                last = max(names, key=lambda name: self._arrival.get(name, -1))
                self._watch(last, self._last_came)

    def finish(self, step: Step) -> None:
        """Report what still waits: the last of its bucket got no gradient, or came before it."""
        for some in self._small_of:
            self._report_new(step, some)

    def end(self) -> None:
        """Set the gradients that have been averaged."""
        self._step = None
        grads = self._ddp.grads
        for name in self._large:
            self._set(name, grads.get(name))
        for some in self._small_of:
            for name in some.misplaced(grads):
                self._set(name, grads.get(name))

    def _set(self, name: str, grad: Array | None) -> None:
        p = self._params[name]
        p.grad = None if grad is None else self._place(name, grad).to(p.dtype)


class _SmallOnes:
    """The small gradients of one bucket, which torch adds up where they lie, if it can.

    What is done for each of a thousand parameters is done by functions of C here.

    Attributes
    ----------
    names, params, places
        The parameters, and the tensors on their parts of the bucket.
    """

    def __init__(self, members: Mapping[str, tuple[torch.nn.Parameter, torch.Tensor]]) -> None:
        self.names = list(members)
        self.params = [param for param, _ in members.values()]
        self.places = [place for _, place in members.values()]
        self._fits = all(p.dtype == place.dtype for p, place in members.values())
        self._versions: list[int] = []  # when they were looked at: torch counts what it adds
        self._is_done = False  # all have come

    def begin(self, adds_here: bool) -> None:
        """Let torch add to the bucket, or make gradients of its own."""
        self._is_done = False
        if not (adds_here and self._fits):
            for p in self.params:
                p.grad = None
        elif not self._are_in_place():
            for p, place in zip(self.params, self.places, strict=True):
                p.grad = place
        self._versions = list(map(_version, self.places))

    def _are_in_place(self) -> bool:
        return all(map(is_, map(_grad, self.params), self.places))

    def take_new(self) -> tuple[list[str], list[str]]:
        """Return what was added up since it was looked at, and what lies elsewhere."""
        before, self._versions = self._versions, list(map(_version, self.places))
        if self._is_done and before == self._versions:
            return [], []
        if self._are_in_place() and all(map(ne, before, self._versions)):
            self._is_done = True
            return self.names[:], []
        named = list(zip(self.names, map(_grad, self.params), self.places, strict=True))
        changed = map(ne, before, self._versions)
        pairs = zip(named, changed, strict=True)
        added = [name for (name, grad, place), is_new in pairs if is_new and grad is place]
        others = [n for n, grad, place in named if grad is not place and grad is not None]
        return added, others

    def misplaced(self, grads: Mapping[str, Array]) -> list[str]:
        """Return those whose gradient is not what lies in the bucket, or should be none."""
        if self._are_in_place() and grads.keys() >= set(self.names):
            return []
        members = zip(self.names, self.params, self.places, strict=True)
        return [name for name, p, place in members if p.grad is not place or name not in grads]


def _streamed(grad: Any, out: Array) -> bool:
    """Copy a large gradient past the caches, which takes half the time; return whether it could."""
    if out.nbytes < _LARGE or grad.dtype not in _SHARED or grad.layout is not torch.strided:
        return False
    array: Array = grad.detach().numpy()
    if array.dtype != out.dtype:
        return False
    PackPlan([(array.shape, array.dtype)], array.dtype).pack([array], out.reshape(-1))
    return True


def _leave(names: Sequence[str], outs: Sequence[Array], add: bool) -> None:
    """Fill nothing: the gradients are where they belong."""


class _ModuleStep:
    """The context that `AttachedModule.step` returns."""

    def __init__(self, attached: AttachedModule, step: Step) -> None:
        self._attached, self._step = attached, step

    def __enter__(self) -> Step:
        entered = self._step.__enter__()
        try:
            self._attached.begin(entered)
        except Exception as error:
            self._step.__exit__(type(error), error, error.__traceback__)
            raise
        return entered

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        try:
            if exc is None:
                self._finish()
            else:
                self._step.__exit__(exc_type, exc, traceback)
        finally:
            self._attached.end()
        return False

    def _finish(self) -> None:
        """Report what waits, and end the step, also if that is refused."""
        try:
            self._attached.finish(self._step)
        except Exception as error:
            self._step.__exit__(type(error), error, error.__traceback__)
            raise
        self._step.__exit__(None, None, None)
