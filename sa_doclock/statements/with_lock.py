"""The lock as part of a SELECT: with_lock()."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Alias, CompoundSelect, Select, Table, inspect
from sqlalchemy.orm import FromStatement, Mapper, Query, selectinload
from sqlalchemy.orm.interfaces import ORMOption
from sqlalchemy.sql import Executable
from sqlalchemy.sql.selectable import SelectStatementGrouping

from ..dialects import table_hints
from ..documents import header_table, tables_of, tables_within
from ..errors import LockMisuse, LockNotSupported
from ..options import LockOptions, base_of, check_lock, is_row_lock
from ..sqlalchemy_internals import (
    ForUpdate,
    for_update_of,
    hint_of,
    options_of,
    with_last_hint,
)
from .lockable import refuse_unlockable_shape, relationships_with_options

# Bare: a Select of two entities is Select[tuple[A, B]] in 2.0 and Select[A, B] in 2.1.
S = TypeVar("S", bound=Select)  # type: ignore[type-arg]

LOCK_OPTION = "doclock"
"""The execution option by which a LockingSession finds what a statement locks."""


class LockedEntity(NamedTuple):
    """The lock of a statement that with_lock() made, and the entity that it is on."""

    entity: Any
    lock: LockOptions
    eager: tuple[ORMOption, ...]  # our own options, which the user's replace
    seconds: float | None = None  # to wait for it; None: as the session that executes it


def with_lock(statement: S, lock: LockOptions, entity: Any = None) -> S:
    """Return the ORM select with the lock in it: every header row it returns is locked.

    Only rows of ``entity`` are locked, never those of tables joined to it.

    A :class:`LockingSession` also sees to the transaction: its isolation level, what the
    session knows already, and databases where the lock is not in the SELECT.  A plain
    ``Session`` runs whatever lock is in the SQL: nothing on SQLite, nothing for the
    SharedRead of SQL Server, and rows as they are joined on MariaDB, which has no
    ``FOR UPDATE OF``.  What is read by the locking statement from *other* tables can be
    older than the lock there.

    Not guarded, in any session: the select as a subquery, CTE or EXISTS of another
    statement.  A select of columns alone locks its rows, but ``held_locks`` cannot list
    them, so neither an upgrade nor pending changes are noticed.

    :param entity: the class or ``aliased()`` to lock, where the statement selects several.
    :raises ValueError: contradictory lock, or which entity is meant is not clear.
    :raises LockNotSupported: not an ORM select, or rows that no database can lock:
        DISTINCT, GROUP BY, set operations, derived tables, ``joinedload()``,
        ``subqueryload()``.
    :raises LockMisuse: it has a ``with_for_update()``.  A LockingSession raises it at execution if
        a later ``with_for_update()``, or a later ``with_hint()`` for SQL Server, replaced the lock.
    """
    return locked_select(statement, lock, entity, None)


def locked_select(statement: S, lock: LockOptions, entity: Any, seconds: float | None) -> S:
    """Do :func:`with_lock` with a lock timeout.

    :param seconds: for a LockingSession to wait; None: as the session that executes it.
    """
    check_lock(lock)
    _refuse_other_statements(statement)
    entity = _entity_of(statement, entity)
    if lock is LockOptions.None_:
        return statement
    refuse_unlockable_shape(statement)
    if for_update_of(statement) is not None:
        raise LockMisuse(
            "the statement has a with_for_update() of its own: leave it to with_lock()"
        )
    locked = add_lock(statement, entity, lock)
    if base_of(lock) is LockOptions.NoLock:
        return locked
    chosen = relationships_with_options(options_of(statement))
    # SQLAlchemy refuses a loader option where columns alone are read.
    whole = any(described["expr"] is entity for described in statement.column_descriptions)
    eager = tuple(selectin_options(entity, chosen)) if whole else ()
    return locked.options(*eager).execution_options(
        populate_existing=True,
        autoflush=False,
        **{LOCK_OPTION: LockedEntity(entity, lock, eager, seconds)},
    )


def _refuse_other_statements(statement: object) -> None:
    if isinstance(statement, Select):
        if not _entities(statement):
            raise LockNotSupported("a select of tables has no mapped class: lock an ORM select")
    elif isinstance(statement, (Executable, Query)):
        raise LockNotSupported(
            f"the rows of a {type(statement).__name__} cannot be locked: lock an ORM select"
        )
    else:
        raise TypeError(f"an ORM select is needed, not {statement!r}")


def _entity_of(statement: Select[Any], entity: Any) -> Any:
    """Return the entity to lock: the one that is named, or the only one that is selected."""
    if entity is None:
        return _only_entity(statement)
    found = inspect(entity, raiseerr=False)
    if not (isinstance(found, Mapper) or getattr(found, "is_aliased_class", False)):
        raise TypeError(f"entity must be a mapped class or aliased(), not {entity!r}")
    # A hint for a table that is not there is no error on SQL Server, and no lock.
    if header_table(entity) not in set(tables_within(statement.get_final_froms())):
        raise ValueError(f"the statement does not select from {found.mapper.class_.__name__}")
    return entity


def _only_entity(statement: Select[Any]) -> Any:
    entities = list({id(one): one for one in _entities(statement)}.values())
    if len(entities) > 1:
        names = ", ".join(inspect(one).mapper.class_.__name__ for one in entities)
        raise ValueError(f"the statement selects {names}: say which with entity=")
    return entities[0]


def _entities(statement: Select[Any]) -> list[Any]:
    entities = (described.get("entity") for described in statement.column_descriptions)
    return [entity for entity in entities if entity is not None]


def add_lock(statement: S, entity: Any, lock: LockOptions) -> S:
    """Return the statement with the lock in it, in the SQL of every database."""
    header = header_table(entity)
    base = base_of(lock)
    if is_row_lock(lock):
        statement = statement.with_for_update(
            of=header,
            read=base is LockOptions.SharedRead,
            nowait=LockOptions.NoWait in lock,
            skip_locked=LockOptions.SkipLocked in lock,
        )
    # A dirty read that stops at a subclass's locked row would be none.
    hinted = list(tables_of(entity)) if base is LockOptions.NoLock else [header]
    return _hinted(statement, hinted, lock)


def add_nolock(statement: S) -> S:
    """Return the statement with NoLock hints on all tables that it reads."""
    return _hinted(statement, tables_within(statement.get_final_froms()), LockOptions.NoLock)


def refuse_other_lock(statement: Select[Any], locked: LockedEntity) -> None:
    """Raise LockMisuse if another lock has replaced the statement's own."""
    header, lock = header_table(locked.entity), locked.lock
    wanted = None
    if is_row_lock(lock):
        shared = base_of(lock) is LockOptions.SharedRead
        modifiers = LockOptions.NoWait in lock, LockOptions.SkipLocked in lock
        wanted = ForUpdate((id(header),), shared, *modifiers)
    if for_update_of(statement) != wanted:
        raise LockMisuse(
            "a with_for_update() has replaced the lock of the statement: leave it to with_lock()"
        )
    for one in table_hints():
        if lock in one.hints and hint_of(statement, header, one.name) != one.hints[lock]:
            raise LockMisuse(
                "a with_hint() has replaced the lock of the statement, which is a hint of this "
                "table on SQL Server: hint other tables, or other databases alone"
            )


def _hinted(statement: S, tables: Iterable[Table | Alias], lock: LockOptions) -> S:
    hinted = [one for one in table_hints() if lock in one.hints]
    for table, one in product(tables, hinted):
        statement = with_last_hint(statement, table, one.hints[lock], one.name)
    return statement


def selectin_options(entity: Any, chosen: frozenset[str]) -> Iterator[ORMOption]:
    """Yield options that load by a second statement what the mapping loads by the first."""
    # A JOIN would be locked along where there is no OF, and would show details from
    # before the grant; subqueryload would repeat the lock.
    for relationship in inspect(entity).mapper.relationships:
        in_statement = relationship.lazy in ("joined", "subquery", False)
        if in_statement and chosen.isdisjoint((relationship.key, "*")):
            yield selectinload(getattr(entity, relationship.key))


def locked_entity_of(statement: Executable) -> LockedEntity | None:
    """Return the entity that the statement locks, if it does."""
    found: LockedEntity | None = statement.get_execution_options().get(LOCK_OPTION)
    return found


def refuse_nested_lock(statement: Executable) -> None:
    """Raise LockNotSupported if a select in ``from_statement()`` or a UNION has a lock."""
    for inner in _statements_in(statement):
        if isinstance(inner, Executable) and locked_entity_of(inner) is not None:
            raise LockNotSupported(
                f"the rows of a {type(statement).__name__} cannot be locked: execute the select "
                "that has the lock by itself"
            )


def _statements_in(statement: Any) -> Iterator[Any]:
    """Yield the statements inside, down through UNIONs and the parentheses of their selects."""
    found: Iterable[Any] = ()
    if isinstance(statement, FromStatement):
        found = (statement.element,)
    elif isinstance(statement, CompoundSelect):
        found = statement.selects
    for one in found:
        inner = one.element if isinstance(one, SelectStatementGrouping) else one
        yield inner
        yield from _statements_in(inner)


def refuse_streaming(options: Mapping[str, Any]) -> None:
    """Raise LockNotSupported if rows would be locked one by one, as they are fetched."""
    if options.get("yield_per") or options.get("stream_results"):
        raise LockNotSupported("a locked set is read whole: leave out yield_per and stream()")
