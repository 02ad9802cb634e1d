"""The errors of a session's connections: where a lock has failed, a typed one of ours."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Lock
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import Dialect, ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..dialects import find_strategy
from ..dialects.base import LockStrategy
from ..errors import DocLockError, LockFailed, LockNotAvailable
from ..monitoring import Diagnosis, LockInstrumentation
from ..options import LockOptions
from ..session_ref import weakly
from .cancellation import interruption_of
from .connections import TransactionConnections
from .failed import FailedTransaction
from .ledger import Ledger
from .messages import Asked, add_document, build_error, reason

_watched: weakref.WeakSet[Dialect] = weakref.WeakSet()
_first = Lock()
_by_connection: weakref.WeakKeyDictionary[Connection, weakref.ref[ErrorTranslation]]
_by_connection = weakref.WeakKeyDictionary()


class ErrorTranslation:
    """The lock call that is under way in one session, and what fails in it or beside it."""

    # Of most sessions no lock ever fails: what they do not set they need not be given.
    diagnosis: Diagnosis | None = None
    _keys: Sequence[tuple[Any, ...]] = ()
    _engine: Engine | None = None  # that has failed the lock call under way
    _asked: Asked | None = None
    _asked_at: float
    _held_before: tuple[int, ...]
    _opened_here = False
    _undone = False  # a savepoint undoes what the attempt under way meets
    _met: BaseException | None = None  # what the lock call under way met at the server

    def __init__(
        self,
        session: Session,
        participants: TransactionConnections,
        ledger: Ledger,
        telling: LockInstrumentation,
        aftermath: FailedTransaction,
    ) -> None:
        self._session = weakly(session)
        self._participants = participants
        self._ledger = ledger
        self._telling = telling
        self._aftermath = aftermath

    def watch(self, connection: Connection) -> None:
        """Translate the errors of this connection, as long as it is open."""
        _by_connection[connection] = weakref.ref(self)
        if connection.dialect not in _watched:
            with _first:
                if connection.dialect not in _watched:
                    event.listen(connection.dialect, "handle_error", _on_error)
                    _watched.add(connection.dialect)

    def of_lock(
        self,
        entity: type[Any] | None,
        ident: Any,
        lock: LockOptions,
        seconds: float | None,
        keys: Sequence[tuple[Any, ...]] = (),
    ) -> ErrorTranslation:
        """``with failures.of_lock(...):`` whatever fails in the block is a failed lock.

        :param keys: of the rows, where they are known.
        """
        self._keys = keys
        by_key = entity is None or bool(keys)
        self._asked = Asked(entity, ident, lock, seconds, by_key)
        self._asked_at = time.monotonic()
        self._held_before = self._ledger.mark()
        self._opened_here = not self._session().in_transaction()
        self._ledger.asked = True
        return self

    def answered(self, kind: type[LockFailed], database: str) -> LockFailed:
        """The error of the call under way, which the server has refused by value."""
        error = kind(reason(kind, self._asked))
        add_document(error, *self._document(), database)
        return error

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        met, asked, waited = self._met, self._asked, time.monotonic() - self._asked_at
        assert asked is not None
        self._asked, self._met = None, None
        self._ledger.asked = False
        if error is None:
            self._tell_granted(asked.lock, waited)
            return
        if self._opened_here:
            self._aftermath.roll_back()
        elif (
            isinstance(error, DBAPIError)
            or not isinstance(error, Exception)
            # After another try, which was granted, an error of ours is a misuse like any other.
            or (met is not None and (met is error or not isinstance(error, DocLockError)))
        ):
            self._aftermath.refuse_from_now_on(error)
        if isinstance(error, LockFailed):
            error.waited = waited
            if self.diagnosis is not None and isinstance(error, LockNotAvailable):
                self.diagnosis.add_blockers(
                    error, self._keys, self._engine
                )  # by now nobody waits for it
            self._telling.report_failed(error, waited)

    def _tell_granted(self, lock: LockOptions, waited: float) -> None:
        before = self._held_before
        try:
            self._telling.report_granted(lambda: self._ledger.since(before), lock, waited)
        except BaseException:  # a listener's, as an error of the call
            if self._opened_here:
                self._aftermath.roll_back()
            raise

    @contextmanager
    def undone_by_savepoint(
        self, connection: Connection, block: AbstractContextManager[None]
    ) -> Iterator[None]:
        """The block, after which a lock that is not available has changed nothing.

        On PostgreSQL the error aborts the transaction, and on all a lock on several rows may have
        got some of them.
        """
        savepoint = connection.begin_nested()
        self._undone = True
        try:
            with block:
                yield
        except LockNotAvailable:
            if not self._aftermath.gone:
                savepoint.rollback()
                self._met = None
            raise
        except BaseException:
            with suppress(Exception):  # where the server has rolled back everything, or is gone
                savepoint.rollback()
            raise
        finally:
            self._undone = False
        savepoint.commit()

    def translate(self, context: ExceptionContext) -> BaseException | None:
        """Our own error for a driver's, where its number says that a lock has failed."""
        assert context.connection is not None
        if context.connection not in self._participants.connections() or self._session() is None:
            return None  # a Connection that was lent, and is used by its lender now
        strategy = find_strategy(context.connection)
        if context.is_disconnect:
            self._aftermath.lose()
        if strategy is None:
            return None
        code = strategy.native_code(context.original_exception)
        if context.is_disconnect and code not in strategy.ends_connection:
            return None
        if code in strategy.rollback_noise and self._aftermath.gone:
            return self._aftermath.cause
        if context.statement is None:  # BEGIN, COMMIT, ROLLBACK
            strategy.commit_failed(context.connection)
        error = self._typed(strategy, code, context)
        self._react(strategy, code, context, error)
        return error

    def _react(
        self,
        strategy: LockStrategy,
        code: Any,
        context: ExceptionContext,
        error: DocLockError | None,
    ) -> None:
        aborts = strategy.aborts_on_error and code is not None and context.statement is not None
        if aborts and not (self._undone and isinstance(error, LockNotAvailable)):
            self._aftermath.note_abort(error or context.original_exception)
        if error is None:
            return
        if code in strategy.rolls_back_transaction:
            self._aftermath.lose_transaction()
        if self._asked is not None:
            assert context.connection is not None
            self._engine = context.connection.engine
            self._met = error  # refused when the call has put back what it had set
            return
        if code in strategy.requires_rollback:
            self._aftermath.refuse_from_now_on(error)
        if isinstance(error, LockFailed):
            self._telling.report_failed(error, None)

    def _typed(
        self, strategy: LockStrategy, code: Any, context: ExceptionContext
    ) -> DocLockError | None:
        asked, why = self._asked, ""
        kind = strategy.failures.get(code)
        if kind is None and asked is not None:
            orig = context.original_exception
            kind, why = strategy.refusal(code, orig, by_key=asked.by_key) or (None, "")
            if kind is None and asked.by_key and code in strategy.statement_limits:
                kind = LockNotAvailable
        if kind is None:
            return None
        if asked is not None and code in strategy.server_limits:
            asked = asked._replace(seconds=None)
        error = build_error(kind, why or reason(kind, asked), context)
        elsewhere = kind is LockNotAvailable and context.statement is not None
        add_document(error, *self._document(elsewhere=elsewhere), strategy.name)
        return error

    def _document(
        self, *, elsewhere: bool = False
    ) -> tuple[type[Any] | None, Any, LockOptions | None]:
        """What the error is about; of a flush or commit that was undone, the one held document.

        :param elsewhere: a row was not available, which is another than one that is held.
        """
        if self._asked is not None:
            return self._asked.entity, self._asked.ident, self._asked.lock
        if not elsewhere and len(self._ledger.held) == 1:
            ((entity, identity),) = self._ledger.held
            return entity, identity[0] if len(identity) == 1 else identity, None
        return None, None, None


def _on_error(context: ExceptionContext) -> BaseException | None:
    if context.connection is None:
        return None
    reference = _by_connection.get(context.connection)
    failures = reference() if reference is not None else None
    if failures is None:
        return None
    if context.sqlalchemy_exception is None:
        return interruption_of(context)
    return failures.translate(context)
