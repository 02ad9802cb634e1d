"""The strategies of all databases, and the strategy of an engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache, lru_cache
from importlib.metadata import entry_points
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.types import TypeEngine

from ..errors import LockNotSupported
from ..options import LockOptions, base_of, is_row_lock
from ..sqlalchemy_internals import with_variant
from .base import AUTOCOMMIT, Locked, LockStrategy, levels_for
from .compatible_servers import find_server
from .lock_statements import has_hints, lock_in_select

ENTRY_POINT_GROUP = "sa_doclock.dialects"
"""The entry points by which other packages add a LockStrategy."""

# A statement carries these for all databases, whichever executes it.
_TEXTS = ("texts", "by_keys_hint")
# Global: sessions, gates and plain functions need the strategy of the same engine, and must not ask
# its server again.  An entry lives as long as its engine.
# Threads: if two threads ask a server at once, both get the strategy of the first to finish.
strategies: WeakKeyDictionary[Dialect, LockStrategy] = WeakKeyDictionary()
_strategies_lock = Lock()


# Threads: a cache of a constant.
@cache
def strategy_classes() -> dict[str, type[LockStrategy]]:
    """Return all strategies by the names of their databases; a built-in one wins.

    The dict is global, like the entry points, which do not change while a program runs.
    """
    # Imported for the first engine or statement, so that ``import sa_doclock`` is fast.
    from .mariadb import MariaDBLocks  # noqa: PLC0415
    from .mssql import SQLServerLocks  # noqa: PLC0415
    from .mysql import MySQLLocks  # noqa: PLC0415
    from .postgresql import PostgreSQLLocks  # noqa: PLC0415
    from .sqlite import SQLiteLocks  # noqa: PLC0415

    built_in = (PostgreSQLLocks, MySQLLocks, MariaDBLocks, SQLServerLocks, SQLiteLocks)
    found: dict[str, type[LockStrategy]] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        with suppress(ImportError):  # strategy_for() raises it, for this database only
            found[point.name] = point.load()
    return found | {strategy.name: strategy for strategy in built_in}


def strategy_class(dialect: Dialect) -> type[LockStrategy] | None:
    """Return the strategy class for this database, or None."""
    return strategy_classes().get(product_of(dialect))


def strategy_for(bind: Engine | Connection) -> LockStrategy:
    """Return the strategy of this engine's database, always the same object.

    The first call for an engine may check out a connection: only a server that has answered shows
    whether it is MySQL or MariaDB, and its default isolation level.  A given Connection stays
    unchanged; see ``LockStrategy.asking()``.

    :raises LockNotSupported: no lock dialect is registered for this database, or SQLAlchemy's
        dialect does not connect to the product that answers; or the server cannot be asked.
    """
    strategy = strategies.get(bind.dialect)
    if strategy is not None:
        return strategy
    found = strategy_class(bind.dialect)
    if found is None:
        for point in entry_points(group=ENTRY_POINT_GROUP, name=bind.dialect.name):
            point.load()  # raises the ImportError that strategy_classes() ignores
        raise LockNotSupported(f"no lock dialect is registered for {bind.dialect.name}")
    if not found.isolation.levels and found.note_server is LockStrategy.note_server:
        return _remember(bind.dialect, found(bind.dialect))
    if isinstance(bind, Connection):
        strategy = strategy_classes()[product_of(bind.dialect)](bind.dialect)
        with strategy.asking(bind) as connection:
            return _learn(bind.dialect, strategy, connection)
    try:
        with bind.connect() as connection:
            strategy = strategy_classes()[product_of(bind.dialect)](bind.dialect)
            return _learn(bind.dialect, strategy, connection)
    except AssertionError as error:
        # SQLAlchemy's dialect for PostgreSQL found no version that it knows in this text.
        other = find_server(bind.dialect.name, str(error))
        if other is None:
            raise
        raise LockNotSupported(
            f"the server is {other.product.name}, to which SQLAlchemy's dialect "
            f"{bind.dialect.name} does not connect: {error}"
        ) from error


def find_strategy(connection: Connection) -> LockStrategy | None:
    """Return the strategy of this connection's database, or None.

    None also if the server cannot be asked: a lock asks again, and raises the reason.
    """
    strategy = strategies.get(connection.dialect)
    if strategy is None and product_of(connection.dialect) in strategy_classes():
        with suppress(LockNotSupported, SQLAlchemyError):
            strategy = strategy_for(connection)
    return strategy


def product_of(dialect: Dialect) -> str:
    """Return the database's name; only a connected dialect distinguishes MariaDB from MySQL."""
    return "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name


def _learn(dialect: Dialect, strategy: LockStrategy, connection: Connection) -> LockStrategy:
    """Ask an engine's server for the facts of its strategy, and remember the strategy.

    :param dialect: the engine's; a separate connection of ours has another one.
    """
    if "isolation_level" not in connection.get_execution_options():
        try:
            strategy.check_autocommit(connection)
        except LockNotSupported:
            strategy.findings[AUTOCOMMIT] = True
    strategy.note_server(connection)
    _check_texts(strategy)
    dialect.default_isolation_level = connection.dialect.default_isolation_level
    return _remember(dialect, strategy)


def _check_texts(strategy: LockStrategy) -> None:
    """Refuse texts of statements that are set only for an engine, because they would not be sent.

    Statements are built before their engine is known, with the texts of all databases.

    :raises TypeError: there is such a text.
    """
    ours, of_class = strategy.statements, type(strategy).statements
    for fact in _TEXTS:
        if getattr(ours, fact) != getattr(of_class, fact):
            raise TypeError(
                f"{type(strategy).__name__}.statements.{fact} is set for an engine; "
                "set it on the class: statements are built before their engine is known"
            )


def _remember(dialect: Dialect, strategy: LockStrategy) -> LockStrategy:
    with _strategies_lock:
        return strategies.setdefault(dialect, strategy)


# Threads: as above.  A type belongs to a mapping, and does not change.
@lru_cache(maxsize=1_000)
def parameter_type(type_: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type by which to send the value of a key, for the type of its column.

    It is the same object if no database needs another.
    """
    for strategy in strategy_classes().values():
        as_sent = strategy.statements.key_type(type_)
        if as_sent is not None:
            type_ = with_variant(type_, as_sent, strategy.name)
    return type_


def known_strategies() -> list[LockStrategy]:
    """Return a copy of the strategies of all engines so far: another thread may add one."""
    dialects = (reference() for reference in strategies.keyrefs())
    found = (strategies.get(dialect) for dialect in dialects if dialect is not None)
    return [strategy for strategy in found if strategy is not None]


def has_hint(bind: Engine | Connection, lock: LockOptions) -> bool:
    """Return whether this lock is a table hint of the database."""
    found = strategy_class(bind.dialect)
    return found is not None and lock in found.statements.texts and has_hints(found.statements)


def check_support(strategy: LockStrategy, lock: LockOptions) -> None:
    """:raises LockNotSupported: this database or version cannot give that lock."""
    for option, reason in strategy.refused.items():
        if option in lock:
            raise LockNotSupported(reason)


def may_wait(strategy: LockStrategy, lock: LockOptions) -> bool:
    """Return whether this lock waits for another holder, in a transaction that is opened for it."""
    base = base_of(lock)
    if strategy.statements.locked is Locked.DATABASE:
        return base is LockOptions.ForUpdate
    level = next(iter(levels_for(strategy.isolation, base)), None)
    return is_row_lock(lock_in_select(strategy.statements, base, level))


def by_keys_hints(index: str | None) -> Iterator[tuple[str, str]]:
    """Yield the hints for a SELECT of many keys, with SQLAlchemy's names of their dialects.

    :param index: the name of the index on the key, or None.
    """
    for strategy in strategy_classes().values():
        if strategy.statements.by_keys_hint is not None and index is not None:
            yield strategy.statements.by_keys_hint.format(index=index), strategy.name


# Threads: caches of constants.
@cache
def suffixed() -> tuple[type[LockStrategy], ...]:
    """Return the strategies whose locks are a suffix of a SELECT."""
    return tuple(
        known
        for known in strategy_classes().values()
        if any(text.suffix for text in known.statements.texts.values())
    )


# Threads: as above.
@cache
def table_hints() -> tuple[type[LockStrategy], ...]:
    """Return the strategies whose locks are table hints."""
    return tuple(known for known in strategy_classes().values() if has_hints(known.statements))
