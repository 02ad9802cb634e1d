"""The engines that the two functions use: the isolation levels of their transactions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import SQLAlchemyError

from ...dialects import find_strategy, side_connection, strategy_class
from ...dialects.base import LockStrategy
from ...errors import DeadlockDetected, LockNotSupported
from .footprint import Reading

AUTOCOMMIT: Final = "AUTOCOMMIT"

_MANY_SNAPSHOTS: Final = frozenset({"READ UNCOMMITTED", "READ COMMITTED", AUTOCOMMIT})


@dataclass
class _Known:
    """The facts about one engine.

    :ivar level: of its transactions; None: not known.
    :ivar strategy: the dialect of ours; None: there is none.
    :ivar views: the names of the views.
    """

    level: str | None = None
    strategy: LockStrategy | None = None
    views: frozenset[str] = frozenset()


class EnginesSeen:
    """The engines, each with the facts that were asked once, on a connection of our own."""

    def __init__(self) -> None:
        self._known: dict[Engine, _Known] = {}

    def add(self, connection: Connection) -> None:
        """Note that a function uses the engine of this connection."""
        self._known.setdefault(connection.engine, _Known())

    def ask(self, run: Callable[[Engine, Callable[[], Any]], Any]) -> None:
        """Ask each engine that was seen.

        :param run: calls a function that uses an engine.
        """
        for engine in [*self._known]:
            with suppress(SQLAlchemyError, NotImplementedError):
                self._known[engine] = run(engine, partial(_ask, engine))

    def level(self, connection: Connection) -> str | None:
        """Return the level of a transaction on this connection; None: not known."""
        known = self._known.get(connection.engine, _Known())
        found: str | None = connection.get_execution_options().get("isolation_level", known.level)
        return found

    def in_transaction(self, connection: Connection) -> bool | None:
        """Return whether the driver knows of an open transaction; None: it does not tell."""
        strategy = self._known.get(connection.engine, _Known()).strategy
        if strategy is None or connection.invalidated:
            return None
        return strategy.status.in_transaction(connection)

    def is_deadlock(self, connection: Connection, error: BaseException) -> bool:
        """Return whether a driver's error is that of a deadlock."""
        strategy = self._known.get(connection.engine, _Known()).strategy
        code = None if strategy is None else strategy.errors.native_code(error)
        if strategy is None or code is None:
            return False
        return strategy.errors.failure(code, connection, locking=False) is DeadlockDetected

    def reading(self, connection: Connection, level: str | None) -> Reading:
        """Return the way in which a transaction on this connection reads.

        :param level: the level that a statement of the transaction has set; None: none has.
        """
        strategy = strategy_class(connection.dialect)
        level = self.level(connection) if level is None else level
        return Reading(
            whole_database=strategy is not None and strategy.locks_database,
            passes_writers=strategy is not None and level in strategy.isolation.past_writers,
            one_snapshot=level not in _MANY_SNAPSHOTS,
            views=self._known.get(connection.engine, _Known()).views,
        )


def _ask(engine: Engine) -> _Known:
    with side_connection(engine, {}) as connection:
        strategy = find_strategy(connection)
        views = frozenset(str(name).lower() for name in inspect(connection).get_view_names())
        return _Known(_level_of(connection, strategy), strategy, views)


def _level_of(connection: Connection, strategy: LockStrategy | None) -> str | None:
    if strategy is not None:
        try:
            strategy.check_autocommit(connection)
        except LockNotSupported:
            return AUTOCOMMIT
    found: str | None = connection.get_isolation_level()
    return found
