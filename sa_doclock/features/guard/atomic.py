"""atomic_update(): a relative UPDATE of headers, for which the database's own row lock is enough."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, Final, TypeVar

from sqlalchemy import BindParameter, ClauseElement, Update

from ...core.documents import is_header, key_attributes
from .dml_internals import values_of
from .targets import Row, Target, is_header_target

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
    with its parts.  Nothing is in ``held_locks`` after it, and no version is raised.

    :raises TypeError: not an ``update()``.
    :raises ValueError: it sets no value, or one that is no SQL expression: such a value may have
        been computed from what was read without the lock.
    """
    if not isinstance(statement, Update):
        raise TypeError(f"atomic_update() takes an update(), not {statement!r}")
    rows = values_of(statement).rows
    plain = [name for row in rows for name, value in row.items() if not _is_relative(value)]
    if plain or not rows:
        what = f"the value of {plain[0]}" if plain else "what it sets"
        raise ValueError(
            f"{what} is no SQL expression, as Item.stock - 2 is: it may come from what was read "
            "without the lock; take the lock, and change the object"
        )
    return statement.execution_options(**{_OPTION: True})


def _is_relative(value: Any) -> bool:
    return isinstance(value, ClauseElement) and not isinstance(value, BindParameter)


def needs_no_lock(statement: Any, target: Target, parameters: Iterable[Row]) -> bool:
    """Return whether atomic_update() has made the statement, and it changes headers in place."""
    if not statement.get_execution_options().get(_OPTION):
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
