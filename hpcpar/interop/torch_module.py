"""Modules of torch trained by our DDP: its parameters and gradients are the tensors' own memory."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal

import torch

from .._arrays import Array
from ..errors import ArgumentError
from ..parallel import DDP, Step
from .torch_tensors import array_on, tensor_on

__all__ = ["AttachedModule", "attach", "buffers_of", "params_of"]


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
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._hook_of(name))
            for name, p in self._params.items()
        ]

    def _hook_of(self, name: str) -> Any:
        def hook(p: torch.Tensor) -> None:
            """Move the gradient into its bucket; the next layer's may have its memory."""
            if self._step is not None and p.grad is not None:
                self._step.put(name, array_on(name, p.grad.contiguous()))
                p.grad = None

        return hook

    def step(self, weight: float | None = None, **options: Any) -> _ModuleStep:
        """Return the context of one forward and backward pass; as `DDP.step`."""
        return _ModuleStep(self, self._ddp.step(weight, **options))

    def detach(self) -> None:
        """Take the hooks back. Local."""
        for hook in self._hooks:
            hook.remove()

    def begin(self, step: Step) -> None:
        """Send gradients to `step`; none of an earlier one may be added to."""
        for p in self._params.values():
            p.grad = None
        self._step = step

    def end(self) -> None:
        """Set the gradients that have been averaged."""
        self._step = None
        for name, grad in self._ddp.grads.items():
            p = self._params[name]
            p.grad = tensor_on(grad).to(p.dtype)  # the same memory, if it is the same type


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
            self._step.__exit__(exc_type, exc, traceback)
        finally:
            self._attached.end()
        return False
