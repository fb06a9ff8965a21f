"""Data parallel training: gradients are reduced bucket by bucket while the backward pass runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import Array, as_dtype
from .._core import reducible
from ..comm.attach import as_group
from ..comm.group import Group
from ..errors import ArgumentError, UnsupportedError
from .bucket import BUCKET_NBYTES, FIRST_BUCKET_NBYTES, Bucket, plan_buckets
from .buffers import Planner
from .hooks import CommHook, State
from .identity import agree_on_names, describe_params
from .join import Join
from .replica import Replica, Unused
from .stats import Stats
from .step import OnBucket, Step

__all__ = ["DDP"]


class DDP:
    """Keeps one copy of the parameters per rank in step. Collective over `group`.

    Each step averages the gradients of all ranks. They are computed straight into the buckets
    that travel, so there is no second copy; a bucket is sent as soon as it and all buckets
    before it are full, while the backward pass goes on. Gradients may become ready in another
    order on each rank; buckets leave in the same order on all. After the first step buckets are
    filled in the order that rank 0 has seen.

    Parameters
    ----------
    params
        Name to array, the parameters to train; the same names, shapes and dtypes on every rank
        (their order may differ: rank 0's counts). Frozen parameters are those not in it. An
        array under two names is tied: it is one parameter under its first name.
    group
        Ranks that hold copies; None is the current group. With context parallelism these are
        all ranks of data times context parallel.
    groups
        Patterns of names to smaller groups, for parameters that only some ranks share (experts):
        the sum over that group is still divided by the size of `group`, or by its weights.
    buffers
        Name to array: what is no parameter but must be alike, as running means. Rank 0's
        overwrite the others' at the beginning and before each synchronised step.
    grad_dtype
        Dtype of all gradients and their buckets, as "float32" for bfloat16 parameters: micro-steps
        add up and ranks are summed in it. Buckets then take its bytes per element: twice the
        parameters' here. None: each parameter's own.
    unused
        What a parameter is that got no gradient. "error": a mistake, named on all ranks as the
        block ends. "zero": its gradient is zero here. "skip": the same, and if no rank has a
        gradient it is not in `grads`.
    static
        Whether every step uses the same parameters equally often: then a parameter may be reported
        several times in a step (reused layers, recomputation), and adds up; buckets of the first
        step wait for its end.
    hooks
        What compresses gradients: `Cast`, `Int8`, `TopK`, `PowerSGD`, `LocalSGD` or your own
        `CommHook`, in the order in which they work.
    first_bucket_nbytes, bucket_nbytes
        Size at which the first and the later buckets close.
    broadcast
        Overwrite the parameters with rank 0's. False promises that they are equal already.

    Attributes
    ----------
    group
        The group.
    params
        Name to array without the second names of tied parameters, in rank 0's order: what the
        optimizer takes.
    hooks
        The chain.
    static
        Whether all steps are alike.

    Raises
    ------
    ArgumentError
        A parameter that is no writable array of a dtype with a mean; a size below 1 byte; a
        pattern that fits no name, a group without this rank.
    MismatchError
        The ranks differ in names, shapes, dtypes, ties, bucket sizes or options; raised on all.

    References
    ----------
    Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training,
    VLDB 2020, section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> from hpcpar.testing import run_ranks
    >>> def body(group):
    ...     params = {"w": np.full(2, float(group.rank))}
    ...     ddp = DDP(params, group=group)
    ...     with ddp.step() as step:
    ...         step.put("w", np.array([1.0, 3.0]) * (group.rank + 1))
    ...     return params["w"].tolist(), ddp.grads["w"].tolist()
    >>> run_ranks(2, body)
    [([0.0, 0.0], [1.5, 4.5]), ([0.0, 0.0], [1.5, 4.5])]
    """

    def __init__(
        self,
        params: Mapping[str, Array],
        *,
        group: Group | None = None,
        groups: Mapping[str, Group] | None = None,
        buffers: Mapping[str, Array] | None = None,
        grad_dtype: npt.DTypeLike | None = None,
        unused: Unused = "error",
        static: bool = False,
        hooks: Sequence[CommHook] = (),
        first_bucket_nbytes: int = FIRST_BUCKET_NBYTES,
        bucket_nbytes: int = BUCKET_NBYTES,
        broadcast: bool = True,
    ) -> None:
        self.group = as_group(group)
        self.hooks, self.static = tuple(hooks), static
        if unused not in ("error", "zero", "skip"):
            raise ArgumentError(f"DDP: unused {unused!r} must be 'error', 'zero' or 'skip'.")
        kept, own = dict(buffers or {}), dict(groups or {})
        dtype = None if grad_dtype is None else as_dtype(grad_dtype)
        check_params(params, dtype)
        check_buffers(kept)
        caps = {"first_cap": first_bucket_nbytes, "cap": bucket_nbytes}
        plan_buckets({}, None, **caps)  # refuses bad sizes before any traffic
        numbers = number_groups(params, own, self.group)
        options = {
            "first_bucket_nbytes, bucket_nbytes": str(tuple(caps.values())),
            "grad_dtype": str(dtype),
            "unused, static": f"{unused}, {static}",
            "hooks": repr(list(hooks)),
            "groups": repr({n: list(own)[k - 1] for n, k in sorted(numbers.items())}),
        }
        described = describe_params(params) | describe_params(kept, "buffer ")
        order = agree_on_names("DDP", described | options, self.group)
        params = {name: params[name] for name in order if name in params}
        first_names = find_first_names(params)
        trained = {n: p for n, p in params.items() if first_names[n] == n}
        layouts = {n: (p.shape, dtype or p.dtype.newbyteorder("=")) for n, p in trained.items()}
        self._replica = Replica(
            trained,
            first_names,
            [self.group, *own.values()],
            Planner(layouts, numbers, **caps),
            self.hooks,
            unused=unused,
            static=static,
            buffers=kept,
        )
        self.params = self._replica.params
        if broadcast:
            self._replica.broadcast_params()

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The plan, in launch order."""
        return self._replica.layout.buckets

    @property
    def grads(self) -> dict[str, Array]:
        """The averaged gradients of the last synchronised step, as views of the buckets.

        Valid until the next step begins. Empty before the first step and after one that failed.
        """
        return self._replica.grads

    def step(self, weight: float | None = None, *, on_bucket: OnBucket | None = None) -> Step:
        """Return the context of one forward and backward pass. Collective over the group.

        Its `on_grad` goes to ``Layer.backward``. Leaving the block waits for the reductions and
        sets `grads`.

        Parameters
        ----------
        weight
            None: the mean over ranks, of sums over micro-steps. A number >= 0, for instance
            this rank's tokens: every gradient is the mean over ranks and micro-steps weighted
            by it, ``sum(w * g) / sum(w)``, and zero if all weights are zero. A rank with weight
            0 need not have finite gradients; they are not computed.
        on_bucket
            Called at the end of a synchronised step with the averaged gradients of each bucket,
            by name, as soon as they are there, while the others are still on their way: to update
            their parameters. Not called in a step that failed on some rank. An exception of it
            aborts the group: ranks have updated different parameters then.

        Raises
        ------
        ArgumentError
            On entry: a weight that is negative or not finite, a step inside a step, a weight
            in only some micro-steps. On leaving, on all ranks: a rank did not report all
            gradients, or reported one twice (there it is raised at once).
        MismatchError
            On leaving, on all ranks: only some of them gave a weight.
        RankFailed
            On leaving: another rank's block ended with an exception; the group works on.

        Notes
        -----
        A block that ends with an exception completes its reductions, so that no rank hangs, and
        all ranks learn of it when they leave theirs. If the ranks are not even in the same
        call, or the exception is no `Exception` (Ctrl-C), the group is aborted.

        Micro-steps add up ``w * g`` in the gradients' dtype: in float16 these must stay below
        65504, or the result is inf. A single step is weighted where it is reduced, in float32.
        """
        if weight is not None and not 0 <= weight < math.inf:
            raise ArgumentError(f"ddp.step: weight {weight} must be a finite number >= 0.")
        return Step(self._replica, weight, on_bucket)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Make the steps inside add up locally. Local.

        The next step outside reduces all that was added, including parameters that only an
        earlier micro-step touched.

        Examples
        --------
        ``with ddp.no_sync(), ddp.step() as step: model.backward(..., step.on_grad)``
        """
        before, self._replica.syncing = self._replica.syncing, False
        try:
            yield
        finally:
            self._replica.syncing = before

    def join(self, *, divide_by_initial_world_size: bool = True) -> Join:
        """Return the context in which ranks may take different numbers of steps. Collective.

        A rank that has left the block takes part in the steps of the others, without gradients
        and with weight 0, until all have left it; micro-steps after its last synchronised step are
        dropped. Buffers follow a rank that still has data. Then all ranks get parameters and
        buffers of one that had data longest; its rank is the block's `last`. State of an optimizer
        is not sent: ``group.broadcast_object(state, root=join.last)`` if it is needed.

        Parameters
        ----------
        divide_by_initial_world_size
            Whether steps without weights still divide by the size of the group; otherwise by the
            number of ranks that have data.

        Raises
        ------
        MismatchError
            A rank called another collective on the group while some rank had no data; on all
            ranks, with advice. The group is aborted.
        RankFailed
            Another rank's block ended with an exception.

        Notes
        -----
        Each synchronised step in the block begins with one byte from every rank to every other.

        Examples
        --------
        >>> import numpy as np
        >>> from hpcpar.testing import run_ranks
        >>> def body(group):
        ...     ddp = DDP({"w": np.zeros(1)}, group=group)
        ...     with ddp.join() as join:
        ...         for _ in range(1 + group.rank):
        ...             with ddp.step(weight=2) as step:
        ...                 step.put("w", np.array([1.0 + group.rank]))
        ...             ddp.params["w"] -= ddp.grads["w"]
        ...     return ddp.params["w"].tolist(), join.shadowed, join.last
        >>> run_ranks(2, body)
        [([-3.5], 1, 1), ([-3.5], 0, 1)]
        """
        return Join(self._replica, divide_by_initial_world_size)

    def stats(self) -> Stats:
        """Return bytes per bucket, and where the time of synchronised steps went. Local."""
        replica = self._replica
        sizes = tuple(bucket.nbytes for bucket in self.buckets)
        return Stats(sizes, replica.steps, replica.last, replica.total)

    def state_dict(self) -> State:
        """Return what a restarted run needs to go on alike. Collective over the group.

        The number of steps, the order of the buckets, and the hooks' state: what they did not send
        yet is gathered from all ranks, so that it takes as many times its bytes.
        """
        replica = self._replica
        if len(replica.groups) > 1 and any(hook.has_state for hook in self.hooks):
            raise UnsupportedError(
                "ddp.state_dict: what hooks keep of parameters with groups of their own differs "
                "between these. Leave the hooks' state out, or the groups."
            )
        state: State = {"steps": replica.steps}
        if replica.order is not None:
            state["order"] = "\n".join(replica.order)
        for number, hook in enumerate(self.hooks):
            state |= {f"hooks.{number}.{key}": leaf for key, leaf in hook.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, also on another number of ranks. Collective.

        Raises
        ------
        ArgumentError
            The state is that of other parameters or hooks.
        """
        replica = self._replica
        order = state["order"].split("\n") if "order" in state else None
        if order is not None and sorted(order) != sorted(self.params):
            raise ArgumentError("ddp.load_state_dict: the state is that of other parameters.")
        for number, hook in enumerate(self.hooks):
            start = f"hooks.{number}."
            hook.load_state_dict(
                {k.removeprefix(start): leaf for k, leaf in state.items() if k.startswith(start)}
            )
        replica.steps = int(state["steps"])
        if order is not None:
            replica.follow(order)


def check_params(params: Mapping[str, Array], dtype: np.dtype[Any] | None) -> None:
    """Raise ArgumentError for what cannot be trained."""
    for name, array in params.items():
        _check_array("parameter", name, array)
        if not reducible(array.dtype, "mean"):
            raise ArgumentError(
                f"DDP: parameter {name!r} has dtype {array.dtype}, which has no mean. "
                "Leave it out: it cannot be trained."
            )
        if dtype is not None and (dtype.kind == "c") != (array.dtype.kind == "c"):
            raise ArgumentError(
                f"DDP: grad_dtype {dtype} does not go with parameter {name!r} of {array.dtype}."
            )
    if dtype is not None and not reducible(dtype, "mean"):
        raise ArgumentError(f"DDP: grad_dtype {dtype} has no mean. Choose a float dtype.")


def check_buffers(buffers: Mapping[str, Array]) -> None:
    """Raise ArgumentError for what cannot be overwritten."""
    for name, array in buffers.items():
        _check_array("buffer", name, array)


def _check_array(kind: str, name: str, array: Array) -> None:
    if not isinstance(array, np.ndarray):
        raise ArgumentError(f"DDP: {kind} {name!r} is a {type(array)}, must be an array.")
    if not array.flags.writeable:
        raise ArgumentError(f"DDP: {kind} {name!r} is read-only. Pass a writable copy.")


def number_groups(
    params: Mapping[str, Array], groups: Mapping[str, Group], whole: Group
) -> dict[str, int]:
    """Return the number, from 1, of the group of each parameter that a pattern fits."""
    numbers: dict[str, int] = {}
    for number, (pattern, group) in enumerate(groups.items(), 1):
        fitting = [name for name in params if fnmatchcase(name, pattern)]
        if not fitting:
            raise ArgumentError(f"DDP: groups has {pattern!r}, which fits no parameter.")
        if group.rank < 0 or not set(group.ranks) <= set(whole.ranks):
            raise ArgumentError(
                f"DDP: the group for {pattern!r} must hold this rank, and only ranks of the DDP's "
                f"{whole.here()}."
            )
        numbers |= {name: number for name in fitting if name not in numbers}
    return numbers


def find_first_names(params: Mapping[str, Array]) -> dict[str, str]:
    """Map every name to the first one of the same array."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(array), name) for name, array in params.items()}
