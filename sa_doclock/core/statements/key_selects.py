"""The SELECTs by key of get_entity() and get_entities(), each built once.

With ``whole_row``, a SELECT reads all columns of the row, as ``Locked.WHAT_IS_READ`` requires.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, false, not_, or_, select
from sqlalchemy.orm import Mapper

from ...dialects import by_keys_hints, parameter_type
from ...keys import Identity
from ...options import LockOptions, is_row_lock
from .. import documents
from ..documents import (
    chunks,
    header_table,
    index_of_key,
    key_order,
    mapper_cache,
    root_of,
    unread_columns,
)
from .with_lock import S, add_lock, selectin_options


def key_in(
    columns: Sequence[ColumnElement[Any]], keys: Sequence[Sequence[Any]]
) -> ColumnElement[bool]:
    """Return ``key IN (...)``, each value sent as its column's type: every database uses the index."""
    return documents.key_in(columns, keys, parameter_type)


@mapper_cache
def key_names(mapper: Mapper[Any]) -> tuple[str, ...]:
    """Return the parameter names of the statements by key."""
    return tuple(f"pk_{position}" for position in range(len(mapper.primary_key)))


def parameters_by_key(mapper: Mapper[Any], identity: Identity) -> dict[str, Any]:
    """Return the parameters of the statements by one key."""
    return dict(zip(key_names(mapper), identity, strict=True))


def equals_key(columns: Sequence[ColumnElement[Any]], mapper: Mapper[Any]) -> ColumnElement[bool]:
    """Return the comparison of these columns with the parameters of the primary key.

    The columns may belong to a foreign key, and have other types than the key.
    """
    keys = zip(columns, key_names(mapper), mapper.primary_key, strict=True)
    return and_(
        *(column == bindparam(name, type_=parameter_type(key.type)) for column, name, key in keys)
    )


@mapper_cache
def select_by_key(
    mapper: Mapper[Any],
    lock: LockOptions,
    chosen: frozenset[Any] = frozenset(),
    *,
    whole_row: bool = False,
) -> Select[Any]:
    """Return the SELECT of get_entity(), with parameters ``pk_0``, ``pk_1``, ...

    :param chosen: the relationships for which the caller will add a loader option.
    """
    statement = _select(mapper, lock, chosen, whole_row=whole_row)
    return statement.where(equals_key(mapper.primary_key, mapper))


def _select(
    mapper: Mapper[Any], lock: LockOptions, chosen: frozenset[Any], *, whole_row: bool
) -> Select[Any]:
    entity = mapper.class_
    if lock is LockOptions.None_:
        return select(entity)
    statement = select(entity).options(*selectin_options(entity, chosen))
    if whole_row:
        statement = statement.add_columns(*unread_columns(entity))
    return add_lock(statement, entity, lock, by_key=True)


@mapper_cache
def lock_by_key(mapper: Mapper[Any], lock: LockOptions, *, whole_row: bool = False) -> Select[Any]:
    """Return the SELECT that locks the header's own row, for a mapper that spans several rows.

    One statement for both would show the other rows as of before the wait.
    """
    root = root_of(mapper)
    columns = key_first(root) if whole_row else root.primary_key
    statement = select(*columns).where(equals_key(mapper.primary_key, mapper))
    return add_lock(statement, root.class_, lock, by_key=True)


def key_first(root: Mapper[Any]) -> list[ColumnElement[Any]]:
    """Return the columns of the header's table, the primary key first."""
    others = [column for column in root.local_table.columns if column not in root.primary_key]
    return [*root.primary_key, *others]


def in_order(mapper: Mapper[Any], keys: Iterable[Identity]) -> list[Identity]:
    """Return the keys in ascending order; unchanged if they cannot be compared."""
    listed = list(keys)
    with suppress(TypeError, LookupError):
        listed.sort(key=key_order(mapper))
    return listed


def select_by_keys(
    mapper: Mapper[Any],
    lock: LockOptions,
    keys: Sequence[Sequence[Any]],
    chosen: frozenset[Any] = frozenset(),
    *,
    whole_row: bool = False,
) -> Select[Any]:
    """Return the SELECT of get_entities(), in the order of the keys."""
    if len(mapper.primary_key) == 1:
        return _select_by_one_column(mapper, lock, chosen, whole_row=whole_row)
    where = key_in(mapper.primary_key, keys)
    return _by_keys(_select(mapper, lock, chosen, whole_row=whole_row), mapper, lock, where)


def lock_by_keys(
    mapper: Mapper[Any], lock: LockOptions, keys: Sequence[Identity], *, whole_row: bool = False
) -> Select[Any]:
    """Return the SELECT that locks the headers' own rows, for a mapper that spans several rows."""
    root = root_of(mapper)
    if len(root.primary_key) == 1:
        return _lock_by_one_column(root, lock, whole_row=whole_row)
    return lock_where(root, lock, key_in(root.primary_key, keys), whole_row=whole_row)


def parameters_by_keys(keys: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return the parameters of the statements by several keys; composite keys are in their text."""
    return {"keys": [key[0] for key in keys]} if keys and len(keys[0]) == 1 else {}


def lock_where(
    root: Mapper[Any], lock: LockOptions, where: ColumnElement[bool], *, whole_row: bool = False
) -> Select[Any]:
    """Return the SELECT that locks these headers in the order of their keys, its first columns."""
    columns = key_first(root)
    if not whole_row:
        # With the key alone, MySQL reads and locks the whole index, whatever the hint.
        columns = columns[: len(root.primary_key) + 1]
    locked = add_lock(select(*columns), root.class_, lock, by_key=True)
    return _by_keys(locked, root, lock, where)


@mapper_cache
def _select_by_one_column(
    mapper: Mapper[Any], lock: LockOptions, chosen: frozenset[Any], *, whole_row: bool
) -> Select[Any]:
    where = key_in_parameter(mapper.primary_key[0], mapper)
    return _by_keys(_select(mapper, lock, chosen, whole_row=whole_row), mapper, lock, where)


@mapper_cache
def _lock_by_one_column(root: Mapper[Any], lock: LockOptions, *, whole_row: bool) -> Select[Any]:
    return lock_where(root, lock, key_in_parameter(root.primary_key[0], root), whole_row=whole_row)


def key_in_parameter(column: ColumnElement[Any], mapper: Mapper[Any]) -> ColumnElement[bool]:
    """Return ``key IN (...)`` with the parameter of :func:`parameters_by_keys`.

    :param mapper: of the keys, whose type may differ from the column's.
    """
    type_ = parameter_type(mapper.primary_key[0].type)
    return column.in_(bindparam("keys", expanding=True, type_=type_))


def _by_keys(statement: S, mapper: Mapper[Any], lock: LockOptions, where: ColumnElement[bool]) -> S:
    # PostgreSQL locks the sorted rows; InnoDB and SQL Server read the primary key's index.
    for hint, dialect in by_keys_hints(index_of_key(mapper)) if is_row_lock(lock) else ():
        statement = statement.with_hint(header_table(mapper.class_), hint, dialect)
    return statement.where(where).order_by(*mapper.primary_key)


def key_not_in(
    columns: Sequence[ColumnElement[Any]], keys: Sequence[Identity]
) -> ColumnElement[bool]:
    """Return ``key NOT IN (...)``, in several lists: MariaDB makes a subquery of a long one."""
    return not_(or_(false(), *(key_in(columns, some) for some in chunks(keys))))
