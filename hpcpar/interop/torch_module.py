"""Modules of torch trained by our DDP: its parameters and gradients are the tensors' own memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal

import torch

from .._arrays import Array
from ..errors import ArgumentError
from ..parallel import DDP, Step
from .torch_tensors import array_on, tensor_on

__all__ = ["AttachedModule", "attach", "buffers_of", "params_of"]

_NOWHERE: Any = (None, None)
_SMALL = 1 << 16  # bytes up to which a gradient waits for the others of its bucket


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

    Large gradients move into their buckets as they come. Small ones wait in ``p.grad`` for the
    last of their bucket and are copied together: after the first step only that one has a hook,
    for a call of Python costs as much as several small copies.
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
        self._places: dict[str, tuple[Array, torch.Tensor]] = {}
        self._small = {name for name, p in self._params.items() if p.nbytes <= _SMALL}
        self._small_of: list[list[str]] = []  # by bucket
        self._arrival: dict[str, int] = {}  # of small ones, in the first step
        self._due: list[int] = []
        self._buckets: Any = None
        self._bucket_of: dict[str, int] = {}
        self._hooks: dict[str, Any] = {}
        for name in self._params:
            self._watch(name, self._one_came if name not in self._small else self._small_came)

    def _watch(self, name: str, came: Callable[[str], None]) -> None:
        """Have ``came(name)`` called when the gradient is there."""
        p = self._params[name]
        self._hooks[name] = p.register_post_accumulate_grad_hook(lambda _: came(name))

    def _one_came(self, name: str) -> None:
        if self._step is not None:
            self._give([name])

    def _small_came(self, name: str) -> None:
        """Take note of the order; give a bucket's small gradients once all have come."""
        if self._step is None:
            return
        if name in self._arrival:  # a second backward pass; torch has added to what waits
            return
        self._arrival[name] = len(self._arrival)
        index = self._bucket_of[name]
        self._due[index] -= 1
        if not self._due[index]:
            self._give(sorted(self._small_of[index], key=self._arrival.__getitem__))

    def _last_came(self, name: str) -> None:
        """Give all small gradients of the bucket that ends with this one."""
        if self._step is not None:
            names = self._small_of[self._bucket_of[name]]
            self._give([n for n in names if self._params[n].grad is not None])

    def _give(self, names: list[str]) -> None:
        """Report gradients that are there: copied together they cost little more than one."""
        if names and self._step is not None:
            self._step.on_grads(names, self._fill)
            for name in names:  # the next layer's may have the memory
                self._params[name].grad = None

    def _fill(self, names: Sequence[str], outs: Sequence[Array], add: bool) -> None:
        places = list(map(self._place, names, outs))
        grads: list[Any] = [self._params[name].grad for name in names]
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
        is_new = self._ddp.buckets is not self._buckets
        if is_new:
            self._buckets = self._ddp.buckets
            names = [bucket.names for bucket in self._buckets]
            self._bucket_of = {n: i for i, some in enumerate(names) for n in some}
            self._small_of = [[n for n in some if n in self._small] for some in names]
        if self._arrival and (is_new or len(self._hooks) == len(self._params)):
            self._watch_last_ones()
        self._due = [len(some) for some in self._small_of]
        for p in self._params.values():
            p.grad = None
        self._step = step

    def _watch_last_ones(self) -> None:
        """Leave hooks on the large gradients, and on the last small one of each bucket."""
        for name in self._small & self._hooks.keys():
            self._hooks.pop(name).remove()
        for names in filter(None, self._small_of):
            self._watch(max(names, key=lambda n: self._arrival.get(n, -1)), self._last_came)

    def finish(self) -> None:
        """Report what still waits: the last of its bucket got no gradient, or came before it."""
        self._give([name for name in self._small if self._params[name].grad is not None])

    def end(self) -> None:
        """Set the gradients that have been averaged."""
        self._step = None
        for name, grad in self._ddp.grads.items():
            p, (view, place) = self._params[name], self._places.get(name, _NOWHERE)
            if view is not grad or place.dtype != p.dtype:
                place = self._place(name, grad).to(p.dtype)
            p.grad = place


class _ModuleStep:
    """The context that `AttachedModule.step` returns."""

    def __init__(self, attached: AttachedModule, step: Step) -> None:
        self._attached, self._step = attached, step

    def __enter__(self) -> Step:
        entered = self._step.__enter__()
        self._attached.begin(entered)
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
            self._attached.finish()
        except Exception as error:
            self._step.__exit__(type(error), error, error.__traceback__)
            raise
        self._step.__exit__(None, None, None)
