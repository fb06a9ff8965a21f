"""Modules of torch trained by our DDP: its parameters and gradients are the tensors' own memory."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

import torch

from .._arrays import Array
from ..errors import ArgumentError
from ..parallel import DDP, Step
from .torch_tensors import array_on, tensor_on

__all__ = ["AttachedModule", "attach", "buffers_of", "params_of"]

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
    """A module whose gradients go to a `DDP`; made by `attach`."""

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
        self._waiting: dict[str, torch.Tensor] = {}
        self._bucket_of: dict[str, int] = {}
        self._due: list[int] = []
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._hook_of(name))
            for name, p in self._params.items()
        ]

    def _hook_of(self, name: str) -> Any:
        is_small = self._params[name].nbytes <= _SMALL
        waiting = self._waiting

        def hook(p: torch.Tensor) -> None:
            """Move the gradient into its bucket; the next layer's may have its memory."""
            if self._step is None:
                return
            waiting[name], p.grad = p.grad, None
            if not is_small:
                self._give([name])
            else:
                index = self._bucket_of[name]
                self._due[index] -= 1
                if not self._due[index]:
                    self._give([n for n in waiting if self._bucket_of[n] == index])

        return hook

    def _give(self, names: list[str]) -> None:
        """Report gradients that wait: copied together they cost little more than one."""
        if names and self._step is not None:
            self._step.on_grads(names, self._fill)
            for name in names:
                del self._waiting[name]

    def _fill(self, names: Sequence[str], outs: Sequence[Array], add: bool) -> None:
        places = [self._place(name, out) for name, out in zip(names, outs, strict=True)]
        grads = [self._waiting[name] for name in names]
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
        for hook in self._hooks:
            hook.remove()

    def begin(self, step: Step) -> None:
        """Send gradients to `step`; none of an earlier one may be added to."""
        buckets = self._ddp.buckets
        self._bucket_of = {name: i for i, bucket in enumerate(buckets) for name in bucket.names}
        small = [name for name, p in self._params.items() if p.nbytes <= _SMALL]
        self._due = [0] * len(buckets)
        for name in small:
            self._due[self._bucket_of[name]] += 1
        for p in self._params.values():
            p.grad = None
        self._waiting.clear()
        self._step = step

    def finish(self) -> None:
        """Report what still waits: some of its bucket got no gradient."""
        self._give(list(self._waiting))

    def end(self) -> None:
        """Set the gradients that have been averaged."""
        self._step = None
        for name, grad in self._ddp.grads.items():
            p = self._params[name]
            place = self._place(name, grad)
            p.grad = place if place.dtype == p.dtype else place.to(p.dtype)


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
                self._attached.finish()
            self._step.__exit__(exc_type, exc, traceback)
        finally:
            self._attached.end()
        return False
