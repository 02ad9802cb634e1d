"""atomic_update(): a relative UPDATE of headers, for which the database's own row lock is enough."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, Final, TypeVar

from sqlalchemy import BindParameter, ClauseElement, Update
from sqlalchemy.exc import ArgumentError, InvalidRequestError
from sqlalchemy.orm import Mapper

from ..core.documents import is_header, key_attributes
from ..versions import counts_up
from .dml_internals import values_of
from .targets import (
    Row,
    Target,
    entity_of,
    is_header_target,
    mapper_named,
    table_of,
    targets_of,
)

U = TypeVar("U", bound=Update)

_OPTION: Final = "doclock_atomic"


def atomic_update(statement: U) -> U:
    """Return the UPDATE, which the write guard lets pass without the locks of its headers.

    For a statement that reads what it changes: ``values(stock=Item.stock - 2)``, with its condition
    in ``where(Item.stock >= 2)``.  The database locks each row while it computes the new value, so
    the statement waits for who holds the document ForUpdate or SharedRead, and loses no update.
    The row counts tell whether the condition was true.

    The guard lets pass rows of headers alone, and no change of their keys.  An UPDATE of parts needs
    the lock of their header, with atomic_update() too; so does a header whose total is to agree
    with its parts.  Nothing is in ``held_locks`` after it.

    The UPDATE raises the version of its rows where the class has a ``version_id_col``.  A session with
    ``checkouts=`` locks the rows first, and compares their check-outs: CheckedOut if another owner has
    one of them and the session does not hold it, by ``checkout=``, already.

    Example::

        session.execute(atomic_update(update(Order).where(Order.id == 42).values(total=Order.total + 1)))

    :raises TypeError: not an ``update()``.
    :raises ValueError: it sets no value, or one that is not an SQL expression: such a value may come
        from what was read without the lock.  Or SQL cannot raise the version: the class has a
        ``version_id_generator`` of its own, and ``values()`` does not set the version.
    """
    if not isinstance(statement, Update):
        raise TypeError(f"atomic_update() takes an update(), not {statement!r}")
    rows = values_of(statement).rows
    versions = set(chain.from_iterable(map(_names_of_version, _versioned(statement))))
    plain = [
        name
        for row in rows
        for name, value in row.items()
        if not _is_relative(value) and _key_of(name) not in versions
    ]
    if plain or not rows:
        what = f"the value of {plain[0]}" if plain else "what it sets"
        raise ValueError(
            f"{what} is no SQL expression, as Item.stock - 2 is: it may come from what was read "
            "without the lock; take the lock, and change the object"
        )
    return _raising_versions(statement).execution_options(**{_OPTION: True})


def _versioned(statement: Update) -> list[Mapper[Any]]:
    """Return the classes of the rows that have a version."""
    named = mapper_named(statement)
    if named is None:
        headers = filter(is_header_target, targets_of(statement, None))
        found = [*dict.fromkeys(one.mapper for one in headers if one.mapper is not None)]
    else:
        found = [named]
    return [one for one in found if one.version_id_col is not None]


def _key_of(name: Any) -> str:
    """Return the name of a column or attribute that is given by itself, or by its name."""
    return name if isinstance(name, str) else str(name.key)


def _names_of_version(mapper: Mapper[Any]) -> set[str]:
    column: Any = mapper.version_id_col
    return {column.key, mapper.get_property_by_column(column).key}


def _raising_versions(statement: U) -> U:
    """Return the UPDATE that raises the versions of its rows, too."""
    for mapper in _versioned(statement):
        names = _names_of_version(mapper)
        given = set(map(_key_of, chain.from_iterable(values_of(statement).rows)))
        if not names.isdisjoint(given) or mapper.version_id_generator is False:
            continue  # the statement, or the server, raises it
        _refuse_unmade(statement, mapper)
        version = _version_of(statement, mapper)
        try:
            statement = statement.values({version: version + 1})
        except (ArgumentError, InvalidRequestError):
            raise ValueError(
                f"the version of {mapper.class_.__name__} cannot be added to ordered_values(): set it there, or use values()"
            ) from None
    return statement


def _refuse_unmade(statement: Update, mapper: Mapper[Any]) -> None:
    """:raises ValueError: the UPDATE cannot raise the version of these rows."""
    what, column = f"the version of {mapper.class_.__name__}", mapper.version_id_col
    if column is None or column.table is not table_of(statement):
        raise ValueError(
            f"{what} is in another table than the one that the UPDATE writes: take the lock, and "
            "change the object"
        )
    if not counts_up(mapper):
        raise ValueError(
            f"{what} comes from a version_id_generator, which SQL cannot call: set the version in "
            "values() too"
        )


def _version_of(statement: Update, mapper: Mapper[Any]) -> Any:
    """Return the column of the version as the UPDATE names it."""
    column: Any = mapper.version_id_col
    entity = entity_of(statement)
    if entity is None:
        return statement.table.columns[column.key or column.name]
    return getattr(entity, mapper.get_property_by_column(column).key)


def _is_relative(value: Any) -> bool:
    return isinstance(value, ClauseElement) and not isinstance(value, BindParameter)


def is_atomic(statement: Any) -> bool:
    """Return whether atomic_update() has made the statement."""
    return bool(statement.get_execution_options().get(_OPTION))


def needs_no_lock(statement: Any, target: Target, parameters: Iterable[Row]) -> bool:
    """Return whether atomic_update() has made the statement, and it changes headers in place."""
    if not is_atomic(statement):
        return False
    changed = {name for row in values_of(statement).rows for name in target.by_attribute(row)}
    given = {name for row in parameters for name in target.by_attribute(row)}
    return is_header_target(target) and _stays_in_place(target, changed, given)


def _stays_in_place(target: Target, changed: set[str], given: set[str]) -> bool:
    """Return whether a change of these attributes is one of the header's own row alone.

    :param given: the names of the parameters, which are no values of attributes.
    """
    root, links = target.root, target.links
    deciding = {*key_attributes(root), *chain.from_iterable(link.names for link in links)}
    attributes = {one.key for one in root.column_attrs}
    stays = changed.isdisjoint(deciding) and given.isdisjoint(attributes)
    return stays and is_header(root, root)
