"""How a call runs on one rank: checked, recorded, driven here or handed to progress."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from .._core import HotCall
from ..errors import ArgumentError, CollectiveTimeout, GroupFailed, HpcparError, RankFailed
from . import record, where
from .agree import Header
from .backend import Backend, CrossedGroupsError, Operation
from .comparison import Comparison
from .home import Home
from .progress import Flow
from .quick import Quick
from .request import Request, Steps, View
from .settings import check_timeout
from .work import Work

__all__ = ["Runner"]


class Runner:
    """Runs the calls of one group on this rank, one at a time.

    Attributes
    ----------
    home : Home
    backend : Backend
    view : View
    slot : int
        The group's, in the record.
    state : {"ok", "failed", "closed"}
    hot : HotCall
        The hot path; lets one call run at a time.
    quick : Quick
    comparison : Comparison
    timeout : float or None
        The default deadline of a call, in seconds.
    in_one_order : bool
        Whether blocking and asynchronous calls are one sequence, so that a call may be the one on
        this rank and the other on that; otherwise each kind has an order of its own.
    patient : int
        While above 0 the default deadline is suspended.
    own_time : set of int
        Open operations that the default deadline does not concern, by sequence number.
    """

    def __init__(self, home: Home, backend: Backend, ranks: tuple[int, ...], name: str) -> None:
        self.home = home
        self.backend = backend
        self.state: Literal["ok", "failed", "closed"] = "ok"
        self.view = View(backend.rank, backend.size, home.memory, self._trusts())
        self.timeout = home.settings.timeout
        self.in_one_order = False
        self._flying: set[Work] = set()
        self.patient = 0
        self.own_time: set[int] = set()
        self._name = name
        self.slot = home.register(name, backend.rank, ranks)
        self._cause: BaseException | None = None
        self._pid = os.getpid()
        self.unclaimed: list[Work] = []
        self._noisy = False
        self._given_up: list[Operation] = []
        self.hot = HotCall(home.recorder, self.slot)
        self.quick = Quick(self)
        self.comparison = Comparison(
            home.settings, backend, self.view, self.here, self.quick.forget
        )
        home.progress.changed.append(self._tell_hot)
        self._tell_hot()

    def _trusts(self) -> bool:
        return self.home.settings.check == "off" and not self.backend.always_checks

    @property
    def noisy(self) -> bool:
        """Whether something stands against a call: a failure, an error that waits to be seen."""
        return self._noisy

    @noisy.setter
    def noisy(self, value: bool) -> None:
        self._noisy = value
        self._tell_hot()

    def _tell_hot(self) -> None:
        """Let no call take the hot path while there is something that it does not look at."""
        waits = self.home.progress.is_waiting or bool(self._flying)
        self.hot.set_noisy(self._noisy or self.patient > 0 or waits)

    def here(self, seq: int | None = None) -> str:
        """Return ``[rank r/n, group 'name', #seq]`` for messages."""
        number = "" if seq is None else f", #{seq}"
        return f"[rank {self.view.rank}/{self.view.size}, group {self._name!r}{number}]"

    def fail(self, cause: BaseException) -> None:
        """Make every later call raise GroupFailed because of `cause`."""
        if self.state == "ok":
            self.state, self._cause, self.noisy = "failed", cause, True

    def close(self) -> None:
        """Free the backend; every later call raises."""
        self.state, self.noisy = "closed", True
        self.quick.forget()  # plans hold the backend's memory
        self.home.progress.changed.remove(self._tell_hot)
        self.backend.close()

    def check_usable(self, verb: str) -> None:
        """Raise GroupFailed, or the error of a Work that nobody waited for."""
        if os.getpid() != self._pid:
            raise GroupFailed(
                f"{verb}: this process was forked from a rank, whose group it may not use. Start "
                "helpers with multiprocessing's 'spawn', or before init."
            )
        self._check_state(verb)
        if self.noisy:
            self.raise_unclaimed()

    def _check_state(self, verb: str) -> None:
        if self.state != "ok":
            cause = self._cause
            text = str(cause) or type(cause).__name__  # Ctrl-C says nothing
            why = f", because of: {text}" if cause is not None else ""
            raise GroupFailed(f"{verb}: the group is {self.state}{why}") from cause

    def raise_unclaimed(self) -> None:
        """Raise the first error of an asynchronous operation that nobody has seen."""
        while self.unclaimed:
            work = self.unclaimed.pop(0)
            error = work.exception() if not work.claimed else None
            if error is not None:
                raise error
        self.noisy = self.state != "ok"
        if self.unclaimed:  # one came while this ran
            self.noisy = True

    def call(
        self,
        verb: str,
        make: Callable[[View], Request],
        timeout: float | None,
        async_op: bool,
        given: tuple[Any, ...] = (),
    ) -> Any:
        """Run the request that `make` builds: check, record, drive, or hand to progress."""
        self._acquire(verb)
        try:
            with where.located(self.here):
                self.check_usable(verb)
                default = None if self.patient else self.timeout
                limit = check_timeout(timeout, verb, default)
                request = make(self.view)
                request.site = where.call_site() if self.comparison.takes_sites else None
            if async_op:
                flow = partial(self._flow, request, timeout=timeout)
                return self._begin(request, flow, timeout, limit, given)
            if request.collective:
                self._let_land()
            return self._finish(request, timeout, limit)
        finally:
            self.hot.release()

    def _acquire(self, verb: str) -> None:
        """Keep other threads out of the group until `hot` is released."""
        if not self.hot.acquire():
            raise ArgumentError(
                f"{verb}: another thread is in a call on this group {self.here()}. "
                "Give each thread its own group."
            )

    def prepare(self, request: Request, op: Operation) -> bool:
        """Keep with `op` what carries `request` alone and compares it in the same call, if it can.

        For the communication thread's lane; `begin_again` begins it.
        """
        if self.in_one_order or not self.comparison.is_settled(request):
            return False
        agreement = self.quick.agreement(request)
        op.lane = 1
        return agreement is not None and self.backend.prepare(op, agreement)

    def begin_again(self, request: Request, op: Operation | None) -> Work:
        """Begin a request that was made before, and ended: by `op` alone if it is prepared."""
        self._acquire(request.verb)
        try:
            self.check_usable(request.verb)
            request.site = where.call_site() if self.comparison.takes_sites else None
            flow = partial(self._flow, request) if op is None else partial(self._again, op, request)
            return self._begin(request, flow, None, None if self.patient else self.timeout, ())
        except HpcparError as error:
            self._placed(error)
            raise
        finally:
            self.hot.release()

    def _let_land(self) -> None:
        """Wait until what was begun before has ended, where all calls have one order."""
        for work in tuple(self._flying):
            self.home.progress.drive(work, None)

    @contextmanager
    def without_deadline(self) -> Iterator[None]:
        """Suspend the default deadline for the calls in the block."""
        self.patient += 1
        self._tell_hot()  # its calls know the default deadline only
        try:
            yield
        finally:
            self.patient -= 1
            self._tell_hot()

    def hot_error(self, code: int, rank: int) -> BaseException:
        """Return the exception of a call on the hot path; a late one fails the group."""
        error = self._placed(self.backend.error(code, rank))
        if isinstance(error, CollectiveTimeout) or _breaks_off(error):
            self._leave_behind(error)
        return error

    def message_error(self, code: int, rank: int) -> BaseException:
        """Return the exception of a message on the hot path; the group goes on."""
        return self._placed(self.backend.message_error(code, rank))

    def _placed(self, error: BaseException) -> BaseException:
        if isinstance(error, HpcparError):
            where.place(error, self.here(), self.home.last_operations())
        return error

    def _leave_behind(self, error: BaseException) -> None:
        """Fail the group: this rank left a collective that others may have begun."""
        self.fail(error)
        self.backend.give_up(isinstance(error, CollectiveTimeout))

    def _finish(self, request: Request, timeout: float | None, limit: float | None) -> Any:
        ticket, seq = self._open(request, timeout)
        status = 1
        try:
            with where.located(lambda: self.here(seq), self.home.last_operations):
                steps = self._flow(request, ticket, seq, timeout)
                polled = timeout is not None or self.home.settings.check == "full"
                polled |= self.in_one_order  # MPI's blocking calls meet no other kind
                deadline = None if limit is None else time.monotonic() + limit
                result = self._drive(request, steps, deadline, polled)
            status = 0
            self.quick.learn(request)
            return result
        finally:
            self._close(ticket, seq, status)

    def _open(self, request: Request, timeout: float | None) -> tuple[int, int]:
        recorder = self.home.recorder
        seq = recorder.seq(self.slot)
        if timeout is not None or self.patient:
            self.own_time.add(seq)
        return recorder.begin(self.slot, *request.entry), seq

    def _close(self, ticket: int, seq: int, status: int) -> None:
        self.home.recorder.end(ticket, status)
        self.own_time.discard(seq)

    def _drive(self, request: Request, steps: Steps, deadline: float | None, polled: bool) -> Any:
        """Run the operations of a call on this thread."""
        ops: list[Operation] = []
        try:
            while True:
                step = next(steps)
                ops = step if isinstance(step, list) else [step]
                for op in ops:
                    op.deadline, op.polled = deadline, polled
                late = self._carry(ops)
                if late:
                    raise self._late(request, late)
        except StopIteration as stop:
            return stop.value
        except BaseException as error:
            if ops:  # else nobody has begun
                self._part(request, ops, error)
            raise

    def _carry(self, ops: list[Operation]) -> list[Operation]:
        """Run operations at the same time; return those that were not done at the deadline."""
        # MPI lets no collective be a blocking call on one rank and not on another.
        may_poll = self.backend.compares_itself or ops[0].verb in ("send", "recv")
        if may_poll and self.home.progress.is_waiting:
            return self._carry_all(ops)
        if len(ops) == 1:
            return [] if self.backend.run(ops[0]) else ops
        for op in ops:
            self.backend.start(op)
        return self.backend.wait_all(ops)

    def _carry_all(self, ops: list[Operation]) -> list[Operation]:
        """Run them, and asynchronous calls meanwhile, which others may wait for."""
        for op in ops:
            self.backend.start(op)
        left = list(ops)

        def is_done() -> bool:
            left[:] = [op for op in left if not self.backend.test(op)]
            return not left

        self.home.progress.carry(is_done, ops[0].deadline)
        return left

    def _late(self, request: Request, late: list[Operation]) -> CollectiveTimeout:
        missing = self.backend.missing(late[0])
        who = "which ranks are missing is unknown" if missing is None else f"missing: {missing}"
        error = CollectiveTimeout(f"{request.verb}: not done at the deadline, {who}.")
        where.add_last(error, missing or (), self.backend.last_of)
        self._abandon(request, late, error)
        return error

    def _part(self, request: Request, ops: list[Operation], error: BaseException) -> None:
        """Leave operations that `error` has ended: others may be in the middle of them."""
        if not request.collective:  # the other half of a sendrecv would take the next message
            for op in ops:
                self.backend.cancel(op)
        if _breaks_off(error):
            self._abandon(request, ops, error)
        elif isinstance(error, RankFailed):  # what MPI began for it may still go on
            self._given_up += ops

    def _abandon(self, request: Request, ops: list[Operation], error: BaseException) -> None:
        self._given_up += ops  # their buffers may still be read and written
        if request.collective:  # some have begun it; messages just did not come
            self._leave_behind(error)

    def _begin(
        self,
        request: Request,
        make: Callable[[int, int], Steps],
        timeout: float | None,
        limit: float | None,
        given: tuple[Any, ...],
    ) -> Work:
        ticket, seq = self._open(request, timeout)
        work = Work(request.verb, self.home.progress)
        release = self.home.locks.lock(given) if given else None

        def ended(work: Work, result: Any, error: BaseException | None) -> None:
            """Unlock the arrays, close the record, hand the outcome over."""
            if release is not None:
                release()
            self._flying.discard(work)
            self._tell_hot()
            self._close(ticket, seq, int(error is not None))
            if isinstance(error, HpcparError):
                where.place(error, self.here(seq), self.home.last_operations())
            if error is not None:
                self.unclaimed.append(work)
                self.noisy = True
                self._part(request, flow.operations, error)
            work.finish(result, error)

        flow = Flow(
            make(ticket, seq),
            self.backend,
            work,
            ended,
            None if limit is None else time.monotonic() + limit,
            lambda late: self._late(request, late),
            lane=0 if self.in_one_order else 1,
        )
        if self.in_one_order and request.collective:
            self._flying.add(work)
            self._tell_hot()
        self.home.progress.submit(self if request.collective else None, flow)
        return work

    def _again(self, op: Operation, request: Request, ticket: int, seq: int) -> Steps:
        """Yield a prepared operation; if a rank meant another call, go on as with any call."""
        self._check_state(request.verb)
        op.result = None
        yield op
        if op.result is None:
            self._count(ticket, op)
            return op.recv
        headers = yield from self.comparison.exchange(request, seq, op.result)
        return (yield from self._agreed(request, ticket, seq, headers))

    def _flow(self, request: Request, ticket: int, seq: int, timeout: float | None = None) -> Steps:
        """Yield what the call takes: headers first where ranks must compare, then its steps."""
        if request.collective:
            self._check_state(request.verb)  # it may have failed while an asynchronous call waited
        headers = None
        if self.comparison.is_due(request, timeout):
            headers = yield from self.comparison.exchange(request, seq)
        return (yield from self._agreed(request, ticket, seq, headers))

    def _agreed(
        self, request: Request, ticket: int, seq: int, headers: Sequence[Header] | None
    ) -> Steps:
        """Yield the call's steps, if the headers say that the ranks mean the same."""
        if headers is not None:
            self.comparison.judge(request, headers, seq)
        steps = request.steps(headers)
        try:
            step = next(steps)
            while True:
                yield step
                for op in step if isinstance(step, list) else [step]:
                    self._count(ticket, op)
                step = next(steps)
        except StopIteration as stop:
            return stop.value

    def _count(self, ticket: int, op: Operation) -> None:
        if op.kind != "counts":
            moved = record.traffic_of(op, self.view.rank, self.view.size)
            self.home.recorder.sent(ticket, *moved)


def _breaks_off(error: BaseException) -> bool:
    """Whether a collective ended in the middle: by Ctrl-C, say, or because it never would."""
    own = isinstance(error, (CrossedGroupsError, GroupFailed))
    return own or not isinstance(error, HpcparError)
