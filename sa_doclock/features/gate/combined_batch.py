"""One combined commit: a document locked once, several functions run on it, one COMMIT, all answers."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.util import await_only

from ...core.lock_info import DocumentKey, document_label
from ...core.transaction import LockContext, SessionPart, add_document, state_of
from ...errors import DocLockError, LockFailed, LockLost, LockMisuse
from ...options import LockOptions
from ..on_commit import AfterCommit, call_all
from ..pipeline import SessionPipeline
from .wakeup import Wakeup

E = TypeVar("E", bound=DocLockError)


class Place(NamedTuple):
    """A document, and its database, so that rows of two with the same key are not one document.

    :ivar database: None: nobody knows; it may be any.
    """

    document: DocumentKey
    database: Hashable

    def may_be(self, other: Place) -> bool:
        """Return whether both may be the same row."""
        known = self.database is not None and other.database is not None
        return self.document == other.document and not (known and self.database != other.database)


@dataclass(eq=False)
class Call:
    """One call of gate.run(): its function, and what becomes of it.

    :ivar seconds: how long it may wait for its turn; None: any time.
    :ivar context: of the caller: another thread may run the function.
    :ivar wakeup: ends the wait of the caller's thread; None of a task, which has ``answer``.
    :ivar notified: the wait of the thread was ended: it is answered, or the head of the queue.
    :ivar commit: that of the transaction in which its function runs; None before.
    :ivar on_commit: what its function has given to ``session.on_commit()``.
    """

    session_factory: Callable[[], Any]
    entity: type[Any]
    ident: Any
    place: Place
    function: Callable[[Any, Any], Any]
    seconds: float | None
    started: float = field(default_factory=time.monotonic)
    context: Context = field(default_factory=copy_context)
    wakeup: Wakeup | None = None
    answer: asyncio.Future[None] | None = None
    notified: bool = False
    commit: GateCommit | None = None
    on_commit: Sequence[Callable[[], object]] = ()
    value: Any = None
    error: BaseException | None = None

    @property
    def label(self) -> str:
        """The document in the words of an error."""
        return document_label(self.entity, self.ident)

    def named(self, error: E) -> E:
        """Return the error, with the document in its text."""
        add_document(error, self.entity, self.ident, LockOptions.ForUpdate, "the gate")
        return error

    @property
    def is_limited(self) -> bool:
        """Return whether its caller has said how long it may wait."""
        return self.seconds is not None

    def left(self) -> float | None:
        """Return the seconds that it may still wait for its turn; None: any time."""
        if self.seconds is None:
            return None
        return max(self.seconds - (time.monotonic() - self.started), 0.0)

    def invoke(self, before: Callable[[], object], session: Any, document: Any) -> Any:
        """Return what the function returns, called in the context of its caller."""

        def run() -> Any:
            before()
            return self.function(session, document)

        result = self.context.run(run)
        if not inspect.isawaitable(result):
            return result
        if self.answer is None:
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError("the function has returned an awaitable: use gate.async_run()")
        return await_only(_result_of(self.context.run(asyncio.ensure_future, result)))

    def run_on_commit(self) -> None:
        """Call what the function has asked for; an error is its caller's, and the commit is done."""
        try:
            self.context.run(call_all, self.on_commit)
        except BaseException as error:  # noqa: BLE001  # raised by result()
            self.error = error

    def refuse(self, error: BaseException) -> None:
        """Have the caller raise this error, unless it has one of its own."""
        if self.error is None:
            self.error = error

    def notify(self) -> None:
        """End the wait of the caller."""
        self.notified = True
        if self.wakeup is not None:
            self.wakeup.notify()
        elif self.answer is not None and not self.answer.done():
            self.answer.set_result(None)

    def result(self) -> Any:
        """Return what the function has returned, which is saved; or raise."""
        error, self.error = self.error, None
        if error is None and not (self.commit and self.commit.is_done):
            error = self.named(_interrupted(self.commit))
        if error is not None:
            raise error
        return self.value


class GateCommit(SessionPart):
    """The commit of one transaction of the gate, which its functions must not do.

    :ivar running: a function runs.
    :ivar is_sent: COMMIT was sent, or is about to be.
    :ivar is_done: all databases have committed.
    """

    running = is_sent = is_done = False

    def before_commit(self) -> None:
        """See :class:`SessionPart`.  :raises LockMisuse: a function runs."""
        if self.running:
            raise LockMisuse(
                "the transaction is the gate's, which commits it for several functions: leave out "
                "commit(); flush() and save_changes() may be called"
            )
        self.is_sent = True

    def after_commit(self) -> None:
        """See :class:`SessionPart`."""
        self.is_done = True


def _interrupted(commit: GateCommit | None) -> LockFailed:
    """Return the error of a call of which only an interruption is known."""
    if commit is None or not commit.is_sent:
        return LockLost(
            "the thread that ran the functions was interrupted; nothing was saved; run it again"
        )
    doubt = LockFailed(
        "the thread that ran the functions was interrupted while it committed: nobody knows whether "
        "that was done; look whether the change is there before you run it again"
    )
    doubt.connection_invalidated = True  # as of a connection that is lost in a COMMIT
    return doubt


class _FunctionCancelled(Exception):  # an event of one function, and no error of ours
    """A function has raised CancelledError; the task that runs the functions was not cancelled."""


async def _result_of(task: asyncio.Future[Any]) -> Any:
    """Return the result of a function's task, which ends with the task that waits for it."""
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        raise
    if task.cancelled():
        raise _FunctionCancelled
    return task.result()


class Batch:
    """The transaction of the calls that are at hand.

    :param head: the caller that runs it, first among the calls.
    :param taken: the calls whose functions were run, or are about to be.
    :param before: is called in the context of each function.
    """

    def __init__(self, head: Call, taken: Sequence[Call], before: Callable[[], object]) -> None:
        self._head, self._taken, self._before = head, taken, before
        self._commit = GateCommit()

    def run(self, calls: Iterator[Call]) -> None:
        """Lock, run, commit, and call what the functions have asked for.

        No error comes out but an interruption of this thread.

        :param calls: takes one call after the other.
        """
        error: BaseException | None = None
        try:
            self._given = self._head.session_factory()  # for the functions: it may be of asyncio
            sync_session, self._state = _checked(self._given)
            self._session = sync_session
            with closing(sync_session):
                self._state.parts.add(self._commit)
                sync_session.begin()
                self._run_all(calls)
                sync_session.commit()
        except (Exception, asyncio.CancelledError) as caught:  # noqa: BLE001  # the callers raise it
            error = caught
        finally:
            if self._commit.is_done:
                self._run_on_commit()
            if isinstance(error, Exception):
                for call in self._taken or [self._head]:
                    call.refuse(error)

    def _run_on_commit(self) -> None:
        """Call what the functions have asked for.

        :raises BaseException: an interruption of this thread, such as Ctrl-C, also during another
            caller's function.
        """
        for call in self._taken:
            if call.error is None:
                call.run_on_commit()
        if self._head.answer is None:  # of tasks, the caller's own raises it in the loop
            for call in self._taken:
                error = None if call is self._head else call.error
                if error is not None and not isinstance(error, (Exception, asyncio.CancelledError)):
                    raise error

    def _run_all(self, calls: Iterator[Call]) -> None:
        head, session = self._head, self._session
        # Kept, so that the identity map has it for the first call.
        document = session.get_one_document(
            head.entity, head.ident, LockOptions.ForUpdate, lock_timeout=head.left()
        )
        pipeline = self._state.parts.find(SessionPipeline)
        if pipeline is not None:
            pipeline.keep_savepoints()
        for call in calls:
            call.commit = self._commit
            savepoint = session.begin_nested()
            try:
                document = session.get_one_document(call.entity, call.ident, LockOptions.ForUpdate)
                self._run_one(call, document, savepoint)
            except Exception as error:  # noqa: BLE001  # its caller raises it
                cancelled = isinstance(error, _FunctionCancelled)
                call.refuse(asyncio.CancelledError() if cancelled else error)
                self._undo(savepoint)

    def _run_one(self, call: Call, document: Any, savepoint: SessionTransaction) -> None:
        """Run one function, and release its savepoint."""
        session, parts = self._session, self._state.parts
        before = parts.find(AfterCommit)
        mark = 0 if before is None else before.mark()
        self._commit.running = True
        try:
            call.value = call.invoke(self._before, self._given, document)
        finally:
            self._commit.running = False
        if not _open_savepoints(savepoint, session):
            raise LockMisuse(
                "the function has ended the savepoint that it was run in; leave out rollback(), and "
                "raise an error to undo what it has done"
            )
        pipeline = parts.find(SessionPipeline)
        with nullcontext() if pipeline is None else pipeline.sent_together():
            session.flush()
        savepoint.commit()  # and those of its own that the function has left open
        after = parts.find(AfterCommit)
        if after is not None:
            call.on_commit = after.take_since(mark)

    def _undo(self, savepoint: SessionTransaction) -> None:
        """Undo what one function has done.

        :raises Exception: the whole transaction is gone, and with it what the others have done.
        """
        undone = _open_savepoints(savepoint, self._session)
        # One by one: SQLAlchemy would not expire what was changed in an inner one.
        for one in undone:
            one.rollback()
        if not undone:
            with suppress(Exception):
                self._session.rollback()
        if not self._state.ledger.places:
            raise self._head.named(
                LockLost(
                    "another function of the combined commit has ended the transaction; nothing was "
                    "saved; run it again"
                )
            )


def _open_savepoints(
    outermost: SessionTransaction, session: Session
) -> Sequence[SessionTransaction]:
    """Return the session's savepoints from the innermost to this one; none if it has ended."""
    found: list[SessionTransaction] = []
    one: SessionTransaction | None = session.get_nested_transaction()
    while one is not None:
        found.append(one)
        if one is outermost:
            return found
        one = one.parent
    return ()


def _checked(session: Any) -> tuple[Any, LockContext]:
    """Return the session inside, which locks, and its state.

    :raises TypeError: it is none.
    :raises LockMisuse: it is in a transaction.
    """
    sync_session = getattr(session, "sync_session", session)
    state = state_of(sync_session) if isinstance(sync_session, Session) else None
    if state is None:
        raise TypeError(f"gate.run() needs a factory of LockingSessions; it has made {session!r}")
    if sync_session.in_transaction():
        raise LockMisuse(
            "gate.run() needs new sessions, and this one is in a transaction; give it the factory"
        )
    return sync_session, state
