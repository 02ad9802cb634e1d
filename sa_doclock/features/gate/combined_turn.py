"""One turn of a queue of gate.run(): a document locked once, many functions, one flush, one COMMIT."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from sqlalchemy import Connection, event, inspect
from sqlalchemy.exc import StatementError
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.util import await_only

from ...checkout_info import NOBODY
from ...core.documents import declares, document_key, mapper_of
from ...core.loading import is_loaded
from ...core.transaction import Condition, Noting, SessionPart, add_document, state_of
from ...dialects import strategy_for
from ...dialects.base import Locked
from ...errors import CommitUnknown, DocLockError, LockLost, LockMisuse
from ...options import LockOptions
from ...sqlalchemy_internals import is_flushing
from ..on_commit import AfterCommit, call_all
from .pending import has_row_twice, is_same, may_write, pending_changes
from .queue import QueueEntry

# The cost of a failure, in transactions per function: sharing pays off until half of the functions
# raise, or one flush in sixteen fails.
_RAISED: Final = 2
_REFUSED: Final = 16
_NOTHING: Final[Sequence[object]] = ()


@dataclass(slots=True, eq=False, kw_only=True)
class Call(QueueEntry):
    """One call of gate.run(): its function, and its result."""

    # One holds the document.  The next must be at the server by then, 1.5 round trips away.
    most_at_server: ClassVar[float] = 4

    session_factory: Callable[[], Any]
    entity: type[Any]
    ident: Any
    function: Callable[[Any, Any], Any]
    seconds: float | None  # maximum wait for its turn; None: unlimited
    is_task: bool  # the caller is a task, not a thread
    version: Any = None
    checkout: Any = None
    started: float = field(default_factory=time.monotonic)
    context: Context = field(default_factory=copy_context)  # another thread may run the function
    turn: Turn | None = None  # the turn that has started its function
    is_done: bool = False  # its value or error is final, or its caller was interrupted
    # Its function raised after a change, in a turn that was undone.  Its error counts once the
    # functions before it are saved.
    is_skipped: bool = False
    on_commit: Sequence[Callable[[], object]] = ()
    value: Any = None
    error: BaseException | None = None

    @property
    def waits(self) -> bool:
        """Return whether its function has not begun."""
        return self.turn is None and not self.is_done

    def named(self, error: DocLockError) -> DocLockError:
        """Return the error with the document's name in its text."""
        add_document(error, self.entity, self.ident, LockOptions.ForUpdate, "the gate")
        return error

    def left(self) -> float | None:
        """Return the seconds for which it may still wait; None: unlimited."""
        seconds = self.seconds
        return seconds and max(seconds - (time.monotonic() - self.started), 0.0)

    def invoke(self, turn: Turn, session: Any, document: Any) -> Any:
        """Call the function in the context of its caller; return its result."""
        self.context.run(running.set, turn)
        if not self.is_task:
            return self.context.run(self.function, session, document)
        task = self.context.run(lambda: asyncio.ensure_future(self.function(session, document)))
        return await_only(_result_of(task))

    def forget(self) -> None:
        """Forget the result of a turn that was rolled back: the function runs again."""
        self.value, self.error, self.on_commit, self.is_skipped = None, None, (), False

    def finish(self, error: BaseException | None = None) -> None:
        """Make its result final; an error of its own function takes precedence."""
        self.error = self.error or error
        self.is_done = True

    def result(self) -> Any:
        """Return the function's saved result, or raise."""
        if not self.is_done:  # its task was cancelled
            begun = "the task that waited for it was cancelled"
            self.finish(self.named(_doubt(begun) if self.turn else interrupted()))
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback refers to this frame
        return self.value


class _Undone(Exception):  # internal: control flow
    """The transaction cannot be saved, because of an error of this call; None: of any that ran."""

    def __init__(self, error: BaseException, culprit: Call | None = None) -> None:
        super().__init__(error)
        self.error, self.culprit = error, culprit


class _FunctionCancelled(Exception):  # internal: one function's event
    """A function raised CancelledError, while the task that runs it was not cancelled."""


async def _result_of(task: asyncio.Future[Any]) -> Any:
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # it uses the session until it ends
        raise
    if task.cancelled():
        raise _FunctionCancelled
    return task.result()


running: ContextVar[Turn | None] = ContextVar("sa_doclock.combined", default=None)
"""The turn whose function this thread or task runs."""


class Turn(SessionPart):
    """One transaction, and the calls whose functions share it.

    :param head: the call whose caller runs the turn.
    :param most: the largest number of functions.
    :param alone: the next callers wait for its transaction at the server.
    :ivar taken: the calls whose functions have begun, in order of arrival.
    :ivar standing: some that were behind them when the gate last looked.
    """

    error: BaseException | None = None  # the transaction's error, and so every caller's
    has_ended = False  # nothing of it runs any more; tasks that a function started may outlive it
    is_saved = False  # every database committed, or there was nothing to save
    suspects = cost = 0  # after a failure; see Failures
    is_found = False  # the only suspect

    _is_sent = False  # COMMIT is on its way
    _watches = False  # records the functions' statements
    _has_sent = False  # changes were flushed or executed
    _is_stale = False  # loaded objects may be older than executed changes
    _running: Call | None = None
    _ended = False  # the running function ended the transaction
    _changed = False  # its changes were flushed or executed

    _session: Any
    _state: Any
    _document: Any
    _root: Any
    _free: Any  # the condition that the document is not checked out, where check-outs apply

    def __init__(self, head: Call, *, most: int, alone: bool) -> None:
        self.head, self.most, self._alone = head, most, alone
        self.taken: list[Call] = []
        self.standing: deque[Call] = deque()
        self._pending: Sequence[object] = _NOTHING
        self._statements: list[Any] = []

    # The hooks of SessionPart.

    def begun(self, connection: Connection, *, lent: bool) -> None:
        noted = connection, "before_cursor_execute", self._note_statement
        if self._watches and not event.contains(*noted):
            event.listen(*noted)

    def before_flush(self, session: Session) -> None:
        self._is_stale |= has_row_twice(session)
        if self._running is not None:
            self._changed |= not is_same(self._pending, pending_changes(session))
            self._pending = _NOTHING
        self._has_sent = True

    def before_commit(self) -> None:
        if self._running is not None:
            self._ended = True
            raise LockMisuse(
                "the gate commits this transaction for several functions: do not call commit(); "
                "flush() and save_changes() are allowed"
            )
        self._is_sent = True

    def ended(self, *, committed: bool) -> None:
        self.is_saved |= committed

    def around_write(self, statement: Any, parameters: Any, how: Mapping[str, Any]) -> Noting:
        if statement is None:  # a bulk method writes as a flush does
            self._statements.append(None)
        return super().around_write(statement, parameters, how)

    def _note_statement(self, *arguments: Any) -> None:
        if not is_flushing(self._session):
            self._statements.append(arguments[4].compiled)
            if self._pending and self._state.calls.current is None:
                self._session.flush()  # it must see, and follow, the changes of earlier functions

    # The transaction.

    def run(self, take: Callable[[], Call | None], note_granted: Callable[[], object]) -> None:
        """Lock, run, save; raise nothing but an interruption of this thread.

        :param take: returns the next call, which it adds to ``taken``.
        :param note_granted: lets the next caller follow, and wait for this one at the server.
        """
        try:
            given, self._session = new_session(self.head.session_factory)
            self._state = state_of(self._session)
            with closing(self._session):
                self._lock(note_granted)
                while (call := take()) is not None:
                    self._run_one(call, given)
                self._save()
        except _Undone as undone:
            self._blame(undone)
        except Exception as error:  # noqa: BLE001  # the callers raise it
            if isinstance(error.__context__, _Undone):  # the rollback failed too
                self._blame(error.__context__)
            else:
                self.error = error
        finally:
            self.has_ended = True
            # Break the cycle with the session, so that no garbage collection is needed.
            self._session = self._state = self._document = self._root = None
            if self.is_saved:
                self._run_on_commit()

    def _lock(self, note_granted: Callable[[], object]) -> None:
        head, session, mapper = self.head, self._session, mapper_of(self.head.entity)
        self._state.parts.add(self)
        session.begin()
        locked = strategy_for(session.get_bind(mapper)).statements.locked
        if self._alone and locked is not Locked.DATABASE:
            note_granted()  # lets the next turn queue at the server
        # Kept alive, so that the identity map has it for the first call.
        self._document = session.get_one_document(
            *(head.entity, head.ident, LockOptions.ForUpdate),
            lock_timeout=head.left(),
            checkout=head.checkout,
        )
        self._free = NOBODY if declares(mapper, "checkout") else None
        self._root = session.get_transaction()
        state: Any = inspect(self._document)
        self._key = document_key(state.mapper, state.identity)  # as spelled in the row

    def _save(self) -> None:
        """Flush and commit.  :raises _Undone: the server refused changes of the functions."""
        if all(call.error is not None for call in self.taken):
            self.is_saved = True  # nothing to save
            return
        session = self._session
        try:
            with self._state.transaction.saving():  # a pipeline sends the flush and COMMIT together
                session.flush()
                session.commit()
        except Exception as error:
            if self._is_sent and not _is_of_write(error):
                raise
            self._is_sent = False
            raise _Undone(error) from None

    def _run_on_commit(self) -> None:
        """Call the on_commit functions; re-raise an interruption of the main thread."""
        saved = [call for call in self.taken if call.error is None]
        for call in saved:
            try:
                call.context.run(call_all, call.on_commit)
            except BaseException as error:  # noqa: BLE001, PERF203  # the commit is done; its caller raises it
                call.error = error
        if not self.head.is_task:  # a task's caller raises it in the loop
            for call in saved:
                if call.error is not None and not self._is_of(call, call.error):
                    raise call.error

    # One function.

    def _run_one(self, call: Call, session: Any) -> None:
        """Run one function.  :raises _Undone: it raised after a change, or ended the transaction."""
        if call is self.taken[0]:
            call.forget()  # its error came after functions that are saved now
        if call.is_skipped:
            return
        if not self._watches:
            self._watch()
        self._flush_before(call)
        self._changed = False
        self._statements.clear()
        self._pending, self._running = pending_changes(self._session), call
        try:
            call.value = call.invoke(self, session, self._document_of(call))
            self._check()
        except BaseException as error:
            if not self._is_of(call, error):
                raise  # an interruption of this thread
            self._note_error(call, error)
        else:
            call.on_commit = self._take_on_commit()
            if not self._watches or any(map(may_write, self._statements)):
                self._has_sent = self._is_stale = True
            self._is_stale |= has_row_twice(self._session)
        finally:
            self._pending, self._running = _NOTHING, None

    def _watch(self) -> None:
        # Other functions can be saved even if this one raises.
        self._watches = not self._alone and bool(self.standing or self.taken[1:])
        if self._watches:
            for connection in self._state.connections.all():
                self.begun(connection, lent=False)

    def _flush_before(self, call: Call) -> None:
        """Show the call the changes of earlier functions, including executed statements."""
        gone = self._document in self._session.deleted
        if call.version is not None or gone or self._is_stale:
            try:
                self._session.flush()
            except Exception as error:  # noqa: BLE001
                raise _Undone(error) from None  # caused by an earlier function
        if self._is_stale:
            self._session.expire_all()
            self._is_stale = False

    def _document_of(self, call: Call) -> Any:
        session, document = self._session, self._document
        # Only with a condition does a held lock check again that no one has checked it out.
        checkout = self._free if call.checkout is None else call.checkout
        if (
            (call.version, checkout, call.entity) != (None, None, self.head.entity)
            or document not in session
            or not is_loaded(document, LockOptions.ForUpdate)
        ):
            self._document = document = session.get_one_document(
                *(call.entity, call.ident, LockOptions.ForUpdate),
                version=call.version,
                checkout=checkout,
            )
        return document

    def _check(self) -> None:
        """Release savepoints that a function left open.  :raises Exception: it did not end well."""
        session, transaction = self._session, self._state.transaction
        if self._is_open:
            if not session.is_active:
                session.connection()  # raises PendingRollbackError, as after a failed flush
            while (savepoint := session.get_nested_transaction()) is not None:
                savepoint.commit()
            if transaction.condition is not Condition.OPEN:
                transaction.refuse_failed_commit(whole=True)
        if not self._is_whole():
            raise LockMisuse(
                "the function ended the gate's transaction: do not call commit() or rollback(); to "
                "undo the function's changes, raise an error"
            )

    @property
    def _is_open(self) -> bool:
        return not self._ended and self._session.get_transaction() is self._root

    def _is_whole(self) -> bool:  # the transaction and its lock still exist
        with suppress(DocLockError):  # a part ended the transaction, so its locks are gone
            self._state.transaction.check_locks()
        return self._is_open and self._key in self._state.ledger.held

    def _take_on_commit(self) -> Sequence[Callable[[], object]]:
        part = self._state.parts.find(AfterCommit)
        return () if part is None else part.take_all()

    # The failures.

    def _is_of(self, call: Call, error: BaseException) -> bool:
        """Return whether the error comes from the function, and does not interrupt this thread.

        Signals interrupt the main thread only; there the two cannot be distinguished.
        """
        if isinstance(error, Exception) or call.is_task:
            return isinstance(error, Exception)
        return call is self.head or threading.current_thread() is not threading.main_thread()

    def _note_error(self, call: Call, error: BaseException) -> None:
        """Record the error of a function.  :raises _Undone: it may have changed something."""
        self._take_on_commit()
        call.error = asyncio.CancelledError() if isinstance(error, _FunctionCancelled) else error
        if isinstance(error, Exception) and self._is_untouched():
            return
        if self._has_sent and self._state.transaction.lost:  # the function may have committed it
            for other in self.taken:
                if other.error is None:
                    other.finish(other.named(_doubt("another function of the commit ended it")))
        # A flush may have failed on another function's changes: run all of them again.
        raise _Undone(call.error, call) from None

    def _is_untouched(self) -> bool:
        session = self._session  # in doubt, it has changed something
        return (
            self._watches
            and session.is_active
            and self._state.transaction.condition is Condition.OPEN
            and not session.in_nested_transaction()
            and self._is_whole()
            and not self._changed
            and is_same(self._pending, pending_changes(session))
            and not any(map(may_write, self._statements))
        )

    def _blame(self, undone: _Undone) -> None:
        """Decide whose error is final; all other functions run again.

        An earlier function's changes may have caused it.  It is final if no earlier function ran,
        or once those are saved.
        """
        taken, culprit = self.taken, undone.culprit
        ran = [call for call in taken if call.is_skipped or call.error is None or call is culprit]
        self.cost = 0 if culprit is None else _RAISED
        if not ran[1:]:
            last = (ran or taken)[0]
            last.error = undone.error
            if culprit is None:
                self.is_found, self.cost = True, _REFUSED
            for call in taken[: taken.index(last) + 1]:
                call.finish()
        elif culprit is None:
            self.suspects = len(taken)
        else:
            culprit.is_skipped = True

    def settle(self) -> None:
        """Finish the calls whose outcome is known; the others run again.  Safe to call twice."""
        is_known = self.is_saved or self.error is not None
        if self._is_sent and not is_known:
            self.error = self.head.named(_doubt("the thread that committed it was interrupted"))
            is_known = True
        for call in self.taken:
            if is_known:
                call.finish(None if self.is_saved else self.error)
            elif not call.is_done and (self.suspects or not call.is_skipped):
                call.forget()
            call.turn = None  # last: from here on, another transaction may take the call
        if self.error is not None:  # before any call was taken, or in a listener after COMMIT
            self.head.finish(self.error)


def new_session(factory: Callable[[], Any]) -> tuple[Any, Session]:
    """Return a new session of the factory, and the Session in it, which an AsyncSession has.

    :raises TypeError: it is not a LockingSession.
    :raises LockMisuse: it is in a transaction.
    """
    given = factory()
    session = getattr(given, "sync_session", given)
    if not isinstance(session, Session) or state_of(session) is None:
        raise TypeError(f"gate.run() needs a factory of LockingSessions; this one made {given!r}")
    if session.in_transaction():
        raise LockMisuse(
            "gate.run() needs new sessions, but the factory returned one in a transaction: make one for each call"
        )
    return given, session


def _is_of_write(error: Exception) -> bool:
    """Return whether an error of the commit comes from a flushed write, not from COMMIT."""
    if isinstance(error, StatementError):
        lost = getattr(error, "connection_invalidated", False)
        return error.statement not in (None, "COMMIT") and not lost
    return isinstance(error, StaleDataError)


def _doubt(reason: str) -> CommitUnknown:
    doubt = CommitUnknown(
        f"{reason}: the change may or may not be saved; look for it before you run it again"
    )
    doubt.connection_invalidated = True  # as for a connection lost during COMMIT
    return doubt


def interrupted() -> LockLost:
    """Return the error of a call whose turn was interrupted before its commit."""
    return LockLost("the task that ran the functions was cancelled; nothing was saved; try again")
