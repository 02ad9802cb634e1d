"""The outcome of a COMMIT whose answer was lost, for a session made with ``commit_outcome=True``.

SQLAlchemy ends a transaction with ``Dialect.do_commit()``; an error that it raises fails the
commit, and no event can change that.  So the lookup wraps this method.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any, Final, cast
from weakref import WeakSet, ref

from sqlalchemy import Connection
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..core.transaction import LockContext, SessionPart, TransactionConnection, is_lost, is_watched
from ..dialects import find_strategy, side_engine
from ..dialects.base import CommitOutcomes, LockStrategy, Outcome, Pipeline, ask_driver
from ..errors import LockNotSupported
from ..options import LockOptions

_log = logging.getLogger("sa_doclock")

PATIENCE: Final = 10.0
"""The seconds to wait for the end of a transaction, in a session without a ``lock_timeout``."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5

Transaction = Sequence[Any]
"""The row that identifies a transaction to the server."""


class _Commit:
    """The facts about the COMMIT of one transaction.

    :ivar learned: the transaction ids that a pipeline read together with its writes.
    :ivar wrote: the connections on which the session has written.
    :ivar not_done: the server has certainly not committed.
    """

    not_done = False

    def __init__(self) -> None:
        self.learned: dict[Connection, Transaction] = {}
        self.wrote: set[Connection] = set()


class CommitLookup(SessionPart):
    """Finds out whether a COMMIT took effect although its answer was lost.

    :raises ValueError: the session commits in two phases.
    """

    def __init__(self, session: Session, state: LockContext) -> None:
        if session.twophase:
            raise ValueError(
                "commit_outcome=True and twophase=True exclude each other: a prepared "
                "transaction outlives its connection, and the server's list of prepared "
                "transactions tells its outcome"
            )
        self._state = ref(state)
        lock, seconds = state.options.resolve(LockOptions.ForUpdate, None)
        at_once = LockOptions.NoWait in lock
        self._seconds = 0.0 if at_once else PATIENCE if seconds is None else seconds

    def begun(self, connection: Connection, *, lent: bool) -> None:
        """See :class:`SessionPart`: from now on, :meth:`commit` handles the connection's COMMIT."""
        state, strategy = self._state(), find_strategy(connection)
        if state is None or strategy is None or not _can_ask(strategy, connection):
            return
        _intercept(connection.dialect)
        connection.info[_LOOKUP] = ref(self), ref(connection)
        joined = state.connections.find(connection)
        if joined is not None and not joined.is_listened(_LOOKUP):  # savepoints raise the event too
            joined.listen("before_cursor_execute", self._note_statement, _LOOKUP)

    def _of_transaction(self) -> _Commit:
        state = self._state()
        assert state is not None
        return state.transaction.memory(self, _Commit)

    def _note_statement(
        self, connection: Connection, _cursor: Any, _text: str, _values: Any, context: Any, *_: Any
    ) -> None:
        if context.isinsert or context.isupdate or context.isdelete:
            self._of_transaction().wrote.add(connection)

    def commit_not_done(self) -> bool:
        """See :class:`CommitOutcome`."""
        return self._of_transaction().not_done

    def learn_with_writes(self, connection: Connection, pipeline: Pipeline) -> bool:
        """Learn the transaction together with the writes that a pipeline keeps back.

        :returns: False: there is nothing to learn, so COMMIT may be sent with the writes.
        """
        joined = self._find(connection)
        if joined is None or _LOOKUP not in connection.info or not self._may_have_written(joined):
            return False
        self._of_transaction().learned[connection] = pipeline.ask(_outcomes_of(joined).question)
        return True

    def commit(self, connection: Connection, send: Callable[[], object]) -> None:
        """Send COMMIT; return if the server committed, even if its answer was lost."""
        joined = self._find(connection)
        if joined is None:
            send()
            return
        commit = self._of_transaction()
        commit.not_done = True  # true until COMMIT is sent
        transaction = self._learn(joined)
        commit.not_done = False
        try:
            send()
        except Exception as error:
            if (
                transaction is None
                or transaction[0] is None
                or not is_lost(connection, joined.strategy, error)
            ):
                raise
            outcome = self._look_up(connection, _outcomes_of(joined), transaction)
            commit.not_done = outcome is Outcome.ABORTED
            if outcome is not Outcome.COMMITTED:
                raise
            _log.warning("commit: the connection was lost in COMMIT, which the server has done")
            connection.invalidate(error)

    def _find(self, connection: Connection) -> TransactionConnection | None:
        state = self._state()
        if state is None or not state.connections.commits_now():
            return None
        found = state.connections.find(connection)
        return found if found is not None and found.connection is connection else None

    def _learn(self, joined: TransactionConnection) -> Transaction | None:
        """Return the server's id of the transaction, or None if the session wrote nothing."""
        learned = self._of_transaction().learned
        if joined.connection in learned:
            return learned.pop(joined.connection)
        if not self._may_have_written(joined) or joined.strategy.status.is_aborted(
            joined.connection
        ):
            return None
        # The raw cursor: SQLAlchemy is committing, and would handle the errors of its own.
        cursor = joined.connection.connection.cursor()
        try:
            cursor.execute(_outcomes_of(joined).question)
            return cast("Transaction", cursor.fetchone())
        finally:
            cursor.close()

    def _may_have_written(self, joined: TransactionConnection) -> bool:
        state = self._state()
        assert state is not None
        # Statements that the session cannot read may write, and so may the owner of the Connection.
        foreign = state.connections.foreign_statements or is_watched(joined)
        return bool(foreign) or joined.connection in self._of_transaction().wrote

    def _look_up(
        self, connection: Connection, outcomes: CommitOutcomes, transaction: Transaction
    ) -> Outcome:
        """Ask the server until it knows, or the time is over."""
        from ..process_waits import pause  # noqa: PLC0415  # of a COMMIT that was lost

        until, seconds = time.monotonic() + self._seconds, _FIRST_PAUSE
        with side_engine(connection.engine) as engine:
            while True:
                try:
                    with engine.connect() as other:
                        outcome = outcomes.outcome(other, transaction)
                except Exception as error:  # noqa: BLE001  # it may be starting, or recovering
                    _log.debug("commit: the server does not tell the outcome: %r", error)
                    outcome = Outcome.IN_PROGRESS
                left = until - time.monotonic()
                if outcome is not Outcome.IN_PROGRESS or left <= 0:
                    return outcome
                pause(min(seconds, left), under_asyncio=connection.dialect.is_async)
                seconds = min(2 * seconds, _LONGEST_PAUSE)


def look_up_commits(session: Session, state: LockContext) -> None:
    """Make a session look up the outcome of its commits."""
    if state.parts.commit_outcome is None:
        lookup = state.parts.commit_outcome = CommitLookup(session, state)
        state.parts.add(lookup)
        pipeline: Any = state.parts.pipeline
        if pipeline is not None:
            pipeline.learn = lookup.learn_with_writes


def _outcomes_of(joined: TransactionConnection) -> CommitOutcomes:
    outcomes = joined.strategy.commit_outcomes
    assert outcomes is not None  # otherwise COMMIT is not intercepted
    return outcomes


def _can_ask(strategy: LockStrategy, connection: Connection) -> bool:
    """Return whether the server answers the question without an error; asked once per engine."""
    outcomes = strategy.commit_outcomes
    if outcomes is None:
        return False
    known: bool | None = strategy.findings.get(CommitLookup)
    if known is not None:
        return known
    try:
        with strategy.asking(connection) as other:
            ask_driver(other, outcomes.question)
    except LockNotSupported:
        return False
    except DBAPIError as error:
        if error.connection_invalidated:
            return False  # the program's next statement reports the error
        known = False
    else:
        known = True
    strategy.findings[CommitLookup] = known
    return known


# In Connection.info, which lives as long as the connection to the server.
_LOOKUP: Final = "sa_doclock.commit_lookup"

# Threads: changed under the lock, after do_commit() is replaced.
_intercepted: Final[WeakSet[Dialect]] = WeakSet()
_first: Final = Lock()


def _intercept(dialect: Dialect) -> None:
    """Let CommitLookup see the COMMITs of this dialect."""
    if dialect in _intercepted:
        return
    with _first:
        if dialect not in _intercepted:
            vars(dialect)["do_commit"] = partial(do_commit, dialect.do_commit)
            _intercepted.add(dialect)


def do_commit(own: Callable[[Any], object], pooled: Any) -> None:
    """Replaces the dialect's method of this name: see ``_sends_commit()`` of the core.

    :param own: the method.
    :param pooled: the connection of the pool.
    """
    info = getattr(pooled, "info", None)
    entry = info.pop(_LOOKUP, None) if isinstance(info, dict) else None
    lookup, connection = (None, None) if entry is None else (entry[0](), entry[1]())
    if lookup is None or connection is None:
        own(pooled)
    else:
        lookup.commit(connection, partial(own, pooled))
