"""Turns SQLAlchemy's events into steps of the two functions, and finds the isolation levels of their engines."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import SQLAlchemyError

from sa_doclock.dialects.base import Locked, LockStrategy, MetError, PlainReads
from sa_doclock.errors import DeadlockDetected, LockNotSupported
from sa_doclock.testing.instruments import (
    COMMIT,
    find_strategy,
    keep_rows,
    line_of_program,
    listening,
    side_connection,
    strategy_class,
)
from sa_doclock.testing.scheduling import (
    OWN_TRANSACTION,
    Access,
    Accesses,
    Participant,
    Scheduler,
    Step,
    TransactionAccesses,
    at_end,
    current_participant,
)

from .footprint import Reading, accesses_of, level_set_by, rows_of
from .result import ROLLBACK
from .unseen import Unseen

AUTOCOMMIT: Final = "AUTOCOMMIT"

_MANY_SNAPSHOTS: Final = frozenset({"READ UNCOMMITTED", "READ COMMITTED", AUTOCOMMIT})


@dataclass(frozen=True)
class _Known:
    """Facts about one engine.

    :ivar level: the isolation level of its transactions; None: unknown.
    :ivar strategy: sa_doclock's dialect, or None.
    :ivar views: the names of the views.
    """

    level: str | None = None
    strategy: LockStrategy | None = None
    views: frozenset[str] = frozenset()


_UNKNOWN: Final = _Known()


class EnginesSeen:
    """Engines and their facts, each queried once on a separate connection.

    A program may create an engine for each call.  An engine that was not queried gets the facts of the
    others with its URL and default level, if those agree.
    """

    def __init__(self) -> None:
        self._to_ask: dict[Engine, Hashable] = {}
        self._known: WeakKeyDictionary[Engine, _Known] = WeakKeyDictionary()
        self._alike: dict[Hashable, _Known] = {}

    def add(self, connection: Connection) -> None:
        """Note that a function uses this connection's engine."""
        if connection.engine not in self._known:
            self._to_ask.setdefault(connection.engine, _looks_of(connection))

    def ask(self, run: Callable[[Engine, Callable[[], Any]], Any]) -> None:
        """Query each engine in use.

        :param run: calls a function that uses an engine.
        """
        for engine, looks in self._to_ask.items():
            known = _UNKNOWN
            with suppress(SQLAlchemyError, NotImplementedError):
                known = run(engine, partial(_ask, engine))
            self._known[engine] = known
            same = self._alike.setdefault(looks, known)
            if (same.level, same.views) != (known.level, known.views):
                self._alike[looks] = _UNKNOWN
        self._to_ask.clear()

    def _of(self, connection: Connection) -> _Known:
        known = self._known.get(connection.engine)
        if known is None:
            known = self._known[connection.engine] = self._alike.get(
                _looks_of(connection), _UNKNOWN
            )
        return known

    def level(self, connection: Connection) -> str | None:
        """Return the level of a transaction on this connection; None: unknown."""
        options = connection.get_execution_options()
        found: str | None = options.get("isolation_level", self._of(connection).level)
        return found

    def in_transaction(self, connection: Connection) -> bool | None:
        """Return whether the driver knows of an open transaction; None: unknown."""
        strategy = self._of(connection).strategy
        if strategy is None or connection.invalidated:
            return None
        return strategy.status.in_transaction(connection)

    def is_deadlock(self, connection: Connection, error: BaseException) -> bool:
        """Return whether a driver's error reports a deadlock."""
        strategy = self._of(connection).strategy
        if strategy is None:
            return False
        met = MetError(strategy.errors.native_code(error), error, connection)
        return strategy.errors.meaning(met).error is DeadlockDetected

    def reading(self, connection: Connection, level: str | None) -> Reading:
        """Return how a transaction on this connection reads.

        :param level: the level that a statement of the transaction set, or None.
        """
        strategy = strategy_class(connection.dialect)
        level = self.level(connection) if level is None else level
        reads = {} if strategy is None else strategy.isolation.plain_reads
        return Reading(
            whole_database=strategy is not None and strategy.statements.locked is Locked.DATABASE,
            passes_writers=PlainReads.PAST_WRITERS in reads.get(level or "", PlainReads(0)),
            one_snapshot=level not in _MANY_SNAPSHOTS,
            views=self._of(connection).views,
        )


def _looks_of(connection: Connection) -> Hashable:
    """Return facts that distinguish engines without sending a statement."""
    driver: Any = connection.connection.dbapi_connection
    getter = getattr(driver, "get_autocommit", None)  # MySQL's drivers have it
    autocommit = getter() if getter else getattr(driver, "autocommit", None)
    known = autocommit if isinstance(autocommit, int) else None
    return connection.engine.url, connection.default_isolation_level, known


def _ask(engine: Engine) -> _Known:
    with side_connection(engine, {}) as connection:
        strategy = find_strategy(connection)
        views = frozenset(str(name).lower() for name in inspect(connection).get_view_names())
        level: str | None = connection.get_isolation_level()
        if strategy is not None:
            try:
                strategy.check_autocommit(connection)
            except LockNotSupported:
                level = AUTOCOMMIT
        return _Known(level, strategy, views)


_ROLLBACK_IN_SQL: Final = re.compile(r"\s*ROLLBACK\b", re.IGNORECASE)
_WHOLE_SESSION: Final = re.compile(r"\bSESSION\b", re.IGNORECASE)
_LEVEL: Final = "sa_doclock.testing.level"
_SHOWN_ROWS: Final = 3
_SHOWN_CHARACTERS: Final = 60


class Listeners:
    """Listens to all engines of the process, for the functions of one exploration.

    :ivar turns: grants the turns; None: no function waits, and only the engines are noted.
    """

    def __init__(self, engines: EnginesSeen, unseen: Unseen) -> None:
        self._engines, self._unseen = engines, unseen
        self.turns: Scheduler | None = None

    def listening(self) -> AbstractContextManager[None]:
        """Listen in the block."""
        commit, rollback = partial(self._end, COMMIT), partial(self._end, ROLLBACK)
        return listening(
            (Engine, "before_cursor_execute", self._before_statement),
            (Engine, "after_cursor_execute", self._after_statement),
            (Engine, "handle_error", self._on_error),
            *((Engine, name, commit) for name in ("commit", "prepare_twophase", "commit_twophase")),
            *((Engine, name, rollback) for name in ("rollback", "rollback_twophase")),
        )

    def _before_statement(
        self,
        connection: Connection,
        _cursor: object,
        statement: str,
        parameters: Any,
        context: Any,
        _executemany: bool,
    ) -> None:
        participant = self._participant()
        if participant is None:
            if current_participant.get() is None:
                self._unseen.note_statement(statement)
            return
        if self.turns is None:
            self._engines.add(connection)
        transaction = _transaction(participant, connection)
        used = self._uses(connection, statement, context, transaction)
        number = transaction.number
        if self._engines.level(connection) == AUTOCOMMIT:
            used, number = used | at_end(used), OWN_TRANSACTION
        step = Step(participant.number, statement, _values(parameters), number)
        step.used, step.rows = used, rows_of(statement, context)
        step.accesses = transaction.new(used)
        participant.was_seen |= bool(used)
        self._go(participant, connection, step)

    def _participant(self) -> Participant | None:
        found: Participant | None = current_participant.get()
        return found if found is not None and found.unseen is self._unseen else None

    def _uses(
        self, connection: Connection, statement: str, context: Any, transaction: TransactionAccesses
    ) -> Accesses:
        level = level_set_by(statement)
        if level is not None:
            transaction.level = level
            if _WHOLE_SESSION.search(statement):
                connection.info[_LEVEL] = level
        reading = self._engines.reading(connection, transaction.level)
        used = accesses_of(statement, context, reading)
        if used and reading.one_snapshot and not transaction.began:
            used |= {Access(reading.mode)}
        if _ROLLBACK_IN_SQL.match(statement):
            used |= transaction.ended()
            transaction.forget_locks()
        return used

    def _after_statement(
        self,
        _connection: Connection,
        cursor: Any,
        _statement: str,
        _: object,
        context: Any,
        many: bool,
    ) -> None:
        participant = self._participant()
        if participant is None or participant.step is None:
            return
        rows = None if many else keep_rows(context, cursor)
        step = participant.step
        count = cursor.rowcount
        written = "done" if count < 0 else f"{count} row{'' if count == 1 else 's'}"
        step.saw = written if rows is None else _in_words(rows)
        transaction = participant.transactions.get(step.transaction)
        if transaction is not None:
            transaction.add(step.accesses)

    def _on_error(self, context: ExceptionContext) -> None:
        participant = self._participant()
        if participant is None or participant.step is None:
            return
        step = participant.step
        step.error = context.sqlalchemy_exception or context.original_exception
        if context.connection is not None:
            step.is_deadlock = self._engines.is_deadlock(
                context.connection, context.original_exception
            )
        transaction = participant.transactions.get(step.transaction)
        if transaction is not None:  # the server may have rolled it back
            step.accesses |= transaction.ended()
            transaction.forget_locks()

    def _end(self, statement: str, connection: Connection, *_: object) -> None:
        participant = self._participant()
        if participant is None:
            return
        transaction = _transaction(participant, connection)
        step = Step(participant.number, statement, "", transaction.number)
        ended = transaction.ended()
        if self._engines.in_transaction(connection) is False and participant.step is not None:
            participant.step.accesses |= ended  # in a pipeline, the step includes COMMIT
        else:
            step.used = step.accesses = ended
        self._go(participant, connection, step)
        participant.transactions.pop(transaction.number, None)

    def _go(self, participant: Participant, connection: Connection, step: Step) -> None:
        step.line = line_of_program()
        participant.steps.append(step)
        self._unseen.note_step(participant)
        if self.turns is None:
            participant.step = step
        else:
            self.turns.wait_for_turn(participant, connection, step)


def _transaction(participant: Participant, connection: Connection) -> TransactionAccesses:
    number = participant.number_of(connection)
    if number not in participant.transactions:
        level = None if connection.invalidated else connection.info.get(_LEVEL)
        participant.transactions[number] = TransactionAccesses(number, level)
    return participant.transactions[number]


def _values(parameters: Any) -> str:
    if isinstance(parameters, dict):
        parameters = tuple(parameters.values())
    return _short(repr(tuple(parameters))) if parameters else ""


def _in_words(rows: list[Any]) -> str:
    if not rows:
        return "no row"
    shown = ", ".join(_short(str(tuple(row))) for row in rows[:_SHOWN_ROWS])
    more = len(rows) - _SHOWN_ROWS
    return f"{shown}, and {more} more" if more > 0 else shown


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
