"""The lock as part of a SELECT: with_lock(), and the clauses of every locking statement."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Alias, CompoundSelect, Select, Table, inspect
from sqlalchemy.orm import FromStatement, Mapper, Query, selectinload
from sqlalchemy.orm.interfaces import ORMOption
from sqlalchemy.sql import Executable
from sqlalchemy.sql.selectable import SelectStatementGrouping

from ...dialects import NO_TEXT, suffixed, table_hints
from ...dialects.base import LockStrategy
from ...errors import LockMisuse, LockNotSupported
from ...options import LockOptions, base_of, check_lock, is_row_lock, without_no_key
from ...sqlalchemy_internals import (
    ForUpdate,
    for_update_clause,
    for_update_of,
    hint_of,
    is_distinct,
    is_grouped,
    loads_of,
    lock_clauses,
    options_of,
    with_last_hint,
    without_hints,
    without_lock,
    without_statement_hints,
)
from ..documents import (
    declares,
    entity_cache,
    header_table,
    loaded_mappers,
    mapper_cache,
    tables_of,
    tables_within,
)

# Bare: a Select of two entities is Select[tuple[A, B]] in 2.0 and Select[A, B] in 2.1.
S = TypeVar("S", bound=Select)  # type: ignore[type-arg]

LOCK_OPTION = "doclock"
"""The execution option by which a LockingSession finds the lock of a statement."""


class LockedEntity(NamedTuple):
    """The lock of a statement made by with_lock(), and its entity."""

    entity: Any
    lock: LockOptions
    eager: tuple[ORMOption, ...]  # our own options, which the program's replace
    clauses: tuple[object, ...]  # of the statement as with_lock() made it
    places: Sequence[int]  # of its objects in a row of this statement
    seconds: float | None  # the wait's limit; None: the executing session's


def with_lock(statement: S, lock: LockOptions, entity: Any = None) -> S:
    """Return the ORM select with a lock: it locks every header row that it returns.

    It locks the rows of ``entity``, and none of the tables joined to it.

    A :class:`LockingSession` also sets the isolation level, refreshes the objects that it has, and locks
    on databases where the lock is not in the SELECT.  A plain ``Session`` sends only the SQL: on SQLite
    that locks nothing, on SQL Server nothing for SharedRead, and perhaps only entries of an index if the
    select leaves columns out.  On MariaDB, which has no ``FOR UPDATE OF``, it locks joined rows too.  Rows
    of the *other* tables in the statement may be older than the lock.

    As a subquery, CTE or EXISTS of another statement the select locks as its ``with_for_update()`` does
    there, and is not in ``held_locks``.  Nor are the rows of a select of columns: the session notices
    neither an upgrade nor pending changes of them.

    Example::

        newest = select(Order).order_by(Order.id.desc()).limit(1)
        order = session.scalars(with_lock(newest, LockOptions.ForUpdate)).one()

    :param entity: the class or ``aliased()`` to lock, if the statement selects several.
    :raises ValueError: the lock is contradictory, or the entity ambiguous.
    :raises LockNotSupported: not an ORM select; or rows that no database can lock: DISTINCT, GROUP BY,
        set operations, derived tables, ``joinedload()``, ``subqueryload()``.
    :raises LockMisuse: the statement has a ``with_for_update()``.  A LockingSession raises it at
        execution if a later ``with_for_update()``, or ``with_hint()`` for SQL Server, replaced the lock.
    """
    return locked_select(statement, lock, entity, None)


def locked_select(statement: S, lock: LockOptions, entity: Any, seconds: float | None) -> S:
    """Do :func:`with_lock` with a lock timeout.

    :param seconds: the limit in a LockingSession; None: the executing session's.
    """
    check_lock(lock)
    described = _described(statement)
    entity = _entity_to_lock(statement, described, entity)
    if lock is LockOptions.None_:
        return statement
    refuse_unlockable_shape(statement)
    if for_update_clause(statement) is not None:
        raise LockMisuse(
            "the statement already has a with_for_update(): remove it, since with_lock() adds "
            "the lock"
        )
    locked = add_lock(statement, entity, lock)
    if base_of(lock) is LockOptions.NoLock:
        return locked
    places = places_of(entity, described)
    # SQLAlchemy refuses a loader option if only columns are read.
    options = options_of(statement)
    chosen = relationships_with_options(options) if options else frozenset[Any]()
    eager = selectin_options(entity, chosen) if places else ()
    if eager:
        locked = locked.options(*eager)
    found = LockedEntity(entity, lock, eager, lock_clauses(locked), places, seconds)
    return locked.execution_options(populate_existing=True, autoflush=False, **{LOCK_OPTION: found})


def _described(statement: object) -> Sequence[Any]:
    """Return the columns of an ORM select, as SQLAlchemy describes them.

    :raises LockNotSupported: the statement is something else.
    """
    if isinstance(statement, Select):
        described: Sequence[Any] = statement.column_descriptions
        return described
    if isinstance(statement, (Executable, Query)):
        raise LockNotSupported(
            f"the rows of a {type(statement).__name__} cannot be locked: lock an ORM select"
        )
    raise TypeError(f"statement must be an ORM select, not {statement!r}")


def _entity_to_lock(statement: Select[Any], described: Iterable[Any], entity: Any) -> Any:
    """Return the given entity, or the only one that the statement selects from.

    :raises LockNotSupported: the statement selects from none.
    :raises ValueError: it selects from several, or not from the given one.
    """
    selected = {id(column.get("entity")): column.get("entity") for column in described}
    selected.pop(id(None), None)
    if not selected:
        raise LockNotSupported("a select of tables has no mapped class: lock an ORM select")
    if entity is not None:
        return _checked_entity(statement, entity)
    first, *others = selected.values()
    if others:
        names = ", ".join(
            inspect(selected_entity).mapper.class_.__name__ for selected_entity in selected.values()
        )
        raise ValueError(f"the statement selects {names}: say which with entity=")
    return first


def places_of(entity: Any, described: Iterable[Any]) -> Sequence[int]:
    """Return the places of this entity's objects in a row."""
    return [place for place, column in enumerate(described) if column["expr"] is entity]


def _checked_entity(statement: Select[Any], entity: Any) -> Any:
    found = inspect(entity, raiseerr=False)
    if not (isinstance(found, Mapper) or getattr(found, "is_aliased_class", False)):
        raise TypeError(f"entity must be a mapped class or aliased(), not {entity!r}")
    # On SQL Server, a hint for an absent table is neither an error nor a lock.
    if header_table(entity) not in set(tables_within(statement.get_final_froms())):
        raise ValueError(f"the statement does not select from {found.mapper.class_.__name__}")
    return entity


def refuse_unlockable_shape(statement: Select[Any]) -> None:
    """:raises LockNotSupported: rows of the result, or rows read with them, cannot be locked."""
    refuse_combined_rows(statement)
    options = options_of(statement)
    if options:
        refuse_unlockable_options(options)


def refuse_combined_rows(statement: Select[Any]) -> None:
    """:raises LockNotSupported: a row of the result is not a row of the table."""
    if is_distinct(statement):
        raise LockNotSupported("rows of a SELECT DISTINCT cannot be locked; use EXISTS instead")
    if is_grouped(statement):
        raise LockNotSupported("rows of a GROUP BY cannot be locked; select the keys first")


def refuse_unlockable_options(options: Iterable[Any]) -> None:
    """:raises LockNotSupported: an option reads details by the locking statement."""
    for relationship, strategy in loads_of(options):
        if strategy in ("joined", "subquery"):
            raise LockNotSupported(
                f"{strategy}load({getattr(relationship, 'key', '*')}) reads details in the "
                "locking statement, as they were before the lock was granted; use selectinload()"
            )


def checked_options(options: Iterable[Any]) -> tuple[ORMOption, ...]:
    """Return the loader options as a tuple."""
    checked = tuple(options)
    for option in checked:
        if not isinstance(option, ORMOption):
            raise TypeError(f"options must be a list of loader options, and {option!r} is not one")
    return checked


def relationships_with_options(options: Iterable[Any]) -> frozenset[Any]:
    """Return the relationships that have a loader option; ``*`` stands for all."""
    return frozenset(relationship for relationship, _ in loads_of(options))


def add_lock(statement: S, entity: Any, lock: LockOptions, *, by_key: bool = False) -> S:
    """Return the statement with the lock, in the SQL of every database.

    :param by_key: it finds its rows by their keys.
    """
    header = header_table(entity)
    if is_row_lock(lock):
        arguments = _for_update(inspect(entity).mapper, lock)
        statement = statement.with_for_update(of=header, **arguments)
        statement = add_suffixes(statement, lock)
    # All tables: a dirty read must not wait for a subclass's locked row.
    hinted = [*tables_of(entity)] if base_of(lock) is LockOptions.NoLock else [header]
    return add_hints(statement, hinted, lock, by_key=by_key)


@mapper_cache
def _for_update(mapper: Mapper[Any], lock: LockOptions) -> Mapping[str, bool]:
    """Return the arguments of ``with_for_update()`` for this lock of rows of this class.

    ``key_share``: others may insert rows that refer to the locked one.
    """
    no_key = LockOptions.NoKey in lock or declares(mapper, "no_key")
    return {
        "read": base_of(lock) is LockOptions.SharedRead,
        "nowait": LockOptions.NoWait in lock,
        "skip_locked": LockOptions.SkipLocked in lock,
        "key_share": base_of(lock) is LockOptions.ForUpdate and no_key,
    }


def drop_lock(statement: S, entity: Any) -> S:
    """Return the statement without the lock of :func:`add_lock`."""
    dialects = {dialect.name for dialect in table_hints()}
    unlocked = _without_suffixes(without_lock(statement), suffixed())
    return without_hints(unlocked, header_table(entity), dialects)


def add_suffixes(statement: S, lock: LockOptions) -> S:
    """Return the statement with the suffix that makes a lock of its ``with_for_update()``."""
    dialects = suffixed()
    if dialects:
        statement = _without_suffixes(statement, dialects)
    for dialect in dialects:
        suffix = dialect.statements.texts.get(without_no_key(lock), NO_TEXT).suffix
        if suffix:
            statement = statement.with_statement_hint(suffix, dialect.name)
    return statement


def _without_suffixes(statement: S, dialects: Iterable[type[LockStrategy]]) -> S:
    ours = {
        (dialect.name, text.suffix)
        for dialect in dialects
        for text in dialect.statements.texts.values()
    }
    return without_statement_hints(statement, ours) if ours else statement


def add_candidate_hint(statement: S, entity: Any, lock: LockOptions, strategy: LockStrategy) -> S:
    """Return the statement, which searches for rows to lock, so that it waits no longer than the lock.

    :param lock: the later lock of the rows.
    """
    hint = strategy.statements.texts.get(without_no_key(lock), NO_TEXT).candidates
    if not hint:
        return statement
    return with_last_hint(statement, header_table(entity), hint, strategy.name)


def add_nolock(statement: S) -> S:
    """Return the statement with NoLock hints on all tables that it reads."""
    return add_hints(statement, [*tables_within(statement.get_final_froms())], LockOptions.NoLock)


def refuse_other_lock(statement: Select[Any], locked: LockedEntity) -> None:
    """:raises LockMisuse: another lock has replaced the statement's own."""
    header, lock = header_table(locked.entity), locked.lock
    wanted = None
    if is_row_lock(lock):
        wanted = ForUpdate((id(header),), **_for_update(inspect(locked.entity).mapper, lock))
    if for_update_of(statement) != wanted:
        raise LockMisuse("a with_for_update() has replaced the lock of the statement: remove it")
    for dialect in table_hints():
        hint = dialect.statements.texts.get(without_no_key(lock), NO_TEXT).hint
        if hint and hint_of(statement, header, dialect.name) != hint:
            raise LockMisuse(
                "a with_hint() has replaced the lock of the statement, which on SQL Server is a "
                "hint of this table: hint other tables, or only for other databases"
            )


def add_hints(
    statement: S, tables: Collection[Table | Alias], lock: LockOptions, *, by_key: bool = False
) -> S:
    """Return the statement with the table hints of this lock, for databases with hints."""
    lock = without_no_key(lock)
    for dialect in table_hints():
        text = dialect.statements.texts.get(lock, NO_TEXT)
        hint = (by_key and text.by_key) or text.hint
        if hint:
            for table in tables:
                statement = with_last_hint(statement, table, hint, dialect.name)
    return statement


@entity_cache
def selectin_options(entity: Any, chosen: frozenset[Any]) -> tuple[ORMOption, ...]:
    """Return options that load by a second statement what the mapping would load by the first.

    :param chosen: the relationships for which the caller has an option.
    """
    # Without OF, the lock would cover a JOIN's rows too, and show details from before the grant;
    # subqueryload would repeat the lock.
    found = inspect(entity)
    options: dict[Any, ORMOption] = {}  # by relationship, which subclasses share
    for mapper in loaded_mappers(entity):
        if isinstance(found, Mapper):
            owner = mapper.class_
        else:
            owner = entity if mapper is found.mapper else getattr(entity, mapper.class_.__name__)
        for relationship in mapper.relationships:
            if relationship.lazy in ("joined", "subquery", False) and chosen.isdisjoint(
                (relationship, "*")
            ):
                options.setdefault(relationship, selectinload(getattr(owner, relationship.key)))
    return tuple(options.values())


def locked_entity_of(statement: Executable) -> LockedEntity | None:
    """Return the entity that the statement locks, or None."""
    found: LockedEntity | None = statement.get_execution_options().get(LOCK_OPTION)
    return found


def refuse_nested_lock(statement: Executable) -> None:
    """:raises LockNotSupported: a select in ``from_statement()`` or a UNION has a lock."""
    for inner in _statements_in(statement):
        if isinstance(inner, Executable) and locked_entity_of(inner) is not None:
            raise LockNotSupported(
                f"the rows of a {type(statement).__name__} cannot be locked: execute the select "
                "that has the lock by itself"
            )


def _statements_in(statement: Any) -> Iterator[Any]:
    """Yield the nested statements of UNIONs, and of selects in parentheses."""
    found: Iterable[Any] = ()
    if isinstance(statement, FromStatement):
        found = (statement.element,)
    elif isinstance(statement, CompoundSelect):
        found = statement.selects
    for nested in found:
        inner = nested.element if isinstance(nested, SelectStatementGrouping) else nested
        yield inner
        yield from _statements_in(inner)


def refuse_streaming(options: Mapping[str, Any]) -> None:
    """:raises LockNotSupported: rows would be locked one by one, as they are fetched."""
    if options.get("yield_per") or options.get("stream_results"):
        raise LockNotSupported(
            "a locked set is read in one piece: leave out yield_per and stream()"
        )
