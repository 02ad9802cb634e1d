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
from ...core.transaction import (
    Condition,
    Noting,
    SessionPart,
    add_document,
    state_of,
)
from ...dialects import strategy_for
from ...dialects.base import Locked
from ...errors import CommitUnknown, DocLockError, LockLost, LockMisuse
from ...options import LockOptions
from ...sqlalchemy_internals import is_flushing
from ..on_commit import AfterCommit, call_all
from .pending import has_row_twice, is_same, may_write, pending_changes
from .queue import QueueEntry

# What a failure costs, in answers of a transaction each: sharing pays off until half of the functions
# raise, or one flush in sixteen fails.
_RAISED: Final = 2
_REFUSED: Final = 16
_NOTHING: Final[Sequence[object]] = ()


@dataclass(slots=True, eq=False, kw_only=True)
class Call(QueueEntry):
    """One call of gate.run(): its function, and its result."""

    # One holds the document, and the next one has to be there when it is released, though it needs one
    # and a half round trips to get there.
    most_at_server: ClassVar[float] = 4

    session_factory: Callable[[], Any]
    entity: type[Any]
    ident: Any
    function: Callable[[Any, Any], Any]
    seconds: float | None  # that it may wait for its turn; None: any time
    is_task: bool  # its caller is a task, and not a thread
    version: Any = None
    checkout: Any = None
    started: float = field(default_factory=time.monotonic)
    context: Context = field(default_factory=copy_context)  # another thread may run the function
    turn: Turn | None = None  # in which its function has begun
    is_done: bool = False  # its value or error is final, or its caller was interrupted
    # Its function raised after a change, in a turn that was undone; its error counts once the functions
    # before it are saved.
    is_skipped: bool = False
    on_commit: Sequence[Callable[[], object]] = ()
    value: Any = None
    error: BaseException | None = None

    @property
    def waits(self) -> bool:
        """Return whether its function has not begun."""
        return self.turn is None and not self.is_done

    def named(self, error: DocLockError) -> DocLockError:
        """Return the error, with the document in its text."""
        add_document(error, self.entity, self.ident, LockOptions.ForUpdate, "the gate")
        return error

    def left(self) -> float | None:
        """Return the seconds that it may still wait for its turn; None: any time."""
        seconds = self.seconds
        return seconds and max(seconds - (time.monotonic() - self.started), 0.0)

    def invoke(self, turn: Turn, session: Any, document: Any) -> Any:
        """Return what the function returns, called in the context of its caller."""
        self.context.run(running.set, turn)
        if not self.is_task:
            return self.context.run(self.function, session, document)
        task = self.context.run(lambda: asyncio.ensure_future(self.function(session, document)))
        return await_only(_result_of(task))

    def forget(self) -> None:
        """Forget the result of a turn that was undone: the function runs again."""
        self.value, self.error, self.on_commit, self.is_skipped = None, None, (), False

    def finish(self, error: BaseException | None = None) -> None:
        """Make its result final; the error counts unless its function raised one of its own."""
        self.error = self.error or error
        self.is_done = True

    def result(self) -> Any:
        """Return what the function returned, which is saved; or raise."""
        if not self.is_done:  # its task was cancelled
            begun = "the task that waited for it was cancelled"
            self.finish(self.named(_doubt(begun) if self.turn else interrupted()))
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # whose traceback has this frame
        return self.value


class _Undone(Exception):  # a step on the way, and no error of ours
    """The transaction cannot be saved, because of this error of a call; None: of one of those that ran."""

    def __init__(self, error: BaseException, culprit: Call | None = None) -> None:
        super().__init__(error)
        self.error, self.culprit = error, culprit


class _FunctionCancelled(Exception):  # an event of one function, and no error of ours
    """A function raised CancelledError; the task that runs the functions was not cancelled."""


async def _result_of(task: asyncio.Future[Any]) -> Any:
    """Return the result of a function's task, which ends with the task that waits for it."""
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
"""The turn whose function this thread or task is in."""


class Turn(SessionPart):
    """One transaction, and the calls whose functions share it.

    :param head: the call whose caller runs the turn.
    :param most: the number of functions that it may have.
    :param alone: the next callers wait for its transaction at the server.
    :ivar taken: the calls whose functions have begun, in order of arrival.
    :ivar standing: some that were behind them when the gate looked last.
    """

    error: BaseException | None = None  # of the transaction, and so of all its callers
    has_ended = False  # nothing of it runs any more; a task that a function started may outlive it
    is_saved = False  # all databases have committed, or no function had anything to save
    suspects = cost = 0  # of its failure; see Failures
    is_found = False  # the suspect was alone

    _is_sent = False  # COMMIT is on its way
    _watches = False  # the functions' statements are noted
    _has_sent = False  # changes were sent
    _is_stale = False  # the objects in the session may be older than what functions have sent
    _running: Call | None = None
    _ended = False  # the function that runs has ended the transaction
    _changed = False  # its changes were sent

    _session: Any
    _state: Any
    _document: Any
    _root: Any
    _free: Any  # the condition that nobody has the document checked out, if that is possible

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
                "the transaction is the gate's, which commits it for several functions: leave out "
                "commit(); flush() and save_changes() may be called"
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
                self._session.flush()  # it sees the changes of those before it, and comes after them

    # The transaction.

    def run(self, take: Callable[[], Call | None], note_granted: Callable[[], object]) -> None:
        """Lock, run, save; no error comes out but an interruption of this thread.

        :param take: returns the next call, which it adds to ``taken``.
        :param note_granted: lets the next caller follow, and wait for this one at the server.
        """
        try:
            given = self._open()
            with closing(self._session):
                self._lock(note_granted)
                while (call := take()) is not None:
                    self._run_one(call, given)
                self._save()
        except _Undone as undone:
            self._blame(undone)
        except Exception as error:  # noqa: BLE001  # the callers raise it
            if isinstance(error.__context__, _Undone):  # the rollback has failed too
                self._blame(error.__context__)
            else:
                self.error = error
        finally:
            self.has_ended = True
            # Which have this part: without it nothing of them waits for a garbage collection.
            self._session = self._state = self._document = self._root = None
            if self.is_saved:
                self._run_on_commit()

    def _open(self) -> Any:
        """Return the session for the functions: that of asyncio, where it is one."""
        given, self._session = new_session(self.head.session_factory)
        self._state = state_of(self._session)
        return given

    def _lock(self, note_granted: Callable[[], object]) -> None:
        head, session, mapper = self.head, self._session, mapper_of(self.head.entity)
        self._state.parts.add(self)
        session.begin()
        locked = strategy_for(session.get_bind(mapper)).statements.locked
        if self._alone and locked is not Locked.DATABASE:
            note_granted()  # so that the next one waits for this one at the server
        # Kept, so that the identity map has it for the first call.
        self._document = session.get_one_document(
            *(head.entity, head.ident, LockOptions.ForUpdate),
            lock_timeout=head.left(),
            checkout=head.checkout,
        )
        self._free = NOBODY if declares(mapper, "checkout") else None
        self._root = session.get_transaction()
        state: Any = inspect(self._document)
        self._key = document_key(state.mapper, state.identity)  # as it is spelled in the row

    def _save(self) -> None:
        """Flush and commit.  :raises _Undone: the server refused what the functions have changed."""
        if all(call.error is not None for call in self.taken):
            self.is_saved = True  # there is nothing to save
            return
        session = self._session
        try:
            with self._state.transaction.saving():  # a pipeline sends both together
                session.flush()
                session.commit()
        except Exception as error:
            if self._is_sent and not _is_of_write(error):
                raise
            self._is_sent = False
            raise _Undone(error) from None

    def _run_on_commit(self) -> None:
        """Call what the functions asked for; an interruption of the main thread comes out."""
        saved = [call for call in self.taken if call.error is None]
        for call in saved:
            try:
                call.context.run(call_all, call.on_commit)
            except BaseException as error:  # noqa: BLE001, PERF203  # the commit is done; its caller raises it
                call.error = error
        if not self.head.is_task:  # of tasks, the caller's own raises it in the loop
            for call in saved:
                if call.error is not None and not self._is_of(call, call.error):
                    raise call.error

    # One function.

    def _run_one(self, call: Call, session: Any) -> None:
        """Run one function.  :raises _Undone: it raised after a change, or ended the transaction."""
        if call is self.taken[0]:
            call.forget()  # its error came behind functions that are saved now
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
        # Another function may be saved though this one raises.
        self._watches = not self._alone and bool(self.standing or self.taken[1:])
        if self._watches:
            for connection in self._state.connections.all():
                self.begun(connection, lent=False)

    def _flush_before(self, call: Call) -> None:
        """Have the call see what those before it have done, also by statements of their own."""
        gone = self._document in self._session.deleted
        if call.version is not None or gone or self._is_stale:
            try:
                self._session.flush()
            except Exception as error:  # noqa: BLE001
                raise _Undone(error) from None  # because of a function before it
        if self._is_stale:
            self._session.expire_all()
            self._is_stale = False

    def _document_of(self, call: Call) -> Any:
        """Return the document, which is held, if this call may have it."""
        session, document = self._session, self._document
        # A lock that is held is not compared again without the condition that nobody has it.
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
        """Release the savepoints that a function left open.  :raises Exception: it did not end well."""
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
                "the function has ended the transaction, which is the gate's; leave out commit() "
                "and rollback(), and raise an error to undo its changes"
            )

    @property
    def _is_open(self) -> bool:
        return not self._ended and self._session.get_transaction() is self._root

    def _is_whole(self) -> bool:  # the transaction goes on, with the lock
        with suppress(DocLockError):  # of a part that ends the transaction, whose locks are gone
            self._state.transaction.check_locks()
        return self._is_open and self._key in self._state.ledger.held

    def _take_on_commit(self) -> Sequence[Callable[[], object]]:
        part = self._state.parts.find(AfterCommit)
        return () if part is None else part.take_all()

    # The failures.

    def _is_of(self, call: Call, error: BaseException) -> bool:
        """Return whether an error is the function's, and not an interruption of this thread.

        Python's signals interrupt the main thread alone.  There nobody can tell the two apart.
        """
        if isinstance(error, Exception) or call.is_task:
            return isinstance(error, Exception)
        return call is self.head or threading.current_thread() is not threading.main_thread()

    def _note_error(self, call: Call, error: BaseException) -> None:
        """Note the error of a function.  :raises _Undone: it may have changed something."""
        self._take_on_commit()
        call.error = asyncio.CancelledError() if isinstance(error, _FunctionCancelled) else error
        if isinstance(error, Exception) and self._is_untouched():
            return
        if self._has_sent and self._state.transaction.lost:  # the function may have committed it
            for other in self.taken:
                if other.error is None:
                    other.finish(other.named(_doubt("another function of the commit ended it")))
        # It may be a flush that has failed at the changes of another: then all are tried again.
        raise _Undone(call.error, call) from None

    def _is_untouched(self) -> bool:
        """Return whether the function that raised has changed nothing, for sure."""
        session = self._session
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
        """Find out whose error is final; the functions of all others run again.

        An error may come of what the functions before it have changed.  It is final once these are
        saved, or where there are none.
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
        """Finish the calls of which all is known; the others run again.  It may be called twice."""
        is_known = self.is_saved or self.error is not None
        if self._is_sent and not is_known:
            self.error = self.head.named(_doubt("the thread that committed it was interrupted"))
            is_known = True
        for call in self.taken:
            if is_known:
                call.finish(None if self.is_saved else self.error)
            elif not call.is_done and (self.suspects or not call.is_skipped):
                call.forget()
            call.turn = None  # last: from here on another transaction may take it
        if self.error is not None:  # before any was taken, or of a listener behind the COMMIT
            self.head.finish(self.error)


def new_session(factory: Callable[[], Any]) -> tuple[Any, Session]:
    """Return what the factory makes, and the Session in it: that of asyncio has one.

    :raises TypeError: it makes no locking sessions.
    :raises LockMisuse: the session is in a transaction.
    """
    given = factory()
    session = getattr(given, "sync_session", given)
    if not isinstance(session, Session) or state_of(session) is None:
        raise TypeError(f"gate.run() needs a factory of LockingSessions; it has made {given!r}")
    if session.in_transaction():
        raise LockMisuse(
            "gate.run() needs new sessions, and this one is in a transaction; give it the factory"
        )
    return given, session


def _is_of_write(error: Exception) -> bool:
    """Return whether an error of the commit is that of a write that came with it, not of COMMIT."""
    if isinstance(error, StatementError):
        lost = getattr(error, "connection_invalidated", False)
        return error.statement not in (None, "COMMIT") and not lost
    return isinstance(error, StaleDataError)


def _doubt(reason: str) -> CommitUnknown:
    """Return the error of a call of which nobody knows whether it was saved."""
    doubt = CommitUnknown(
        f"{reason}: the change may or may not be saved; look whether it is there before you "
        "run it again"
    )
    doubt.connection_invalidated = True  # as of a connection that is lost in a COMMIT
    return doubt


def interrupted() -> LockLost:
    """Return the error of a call whose turn was interrupted before its commit."""
    return LockLost(
        "the task that ran the functions was cancelled; nothing was saved; run it again"
    )
