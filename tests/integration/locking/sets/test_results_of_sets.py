"""The Result of a set that locks is the one that the statement has in a plain Session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Bundle, Session, contains_eager

from sa_doclock import LockingSession, LockOptions, with_lock
from tests.support.models import Invoice, Line, Order

pytestmark = pytest.mark.quick

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
_lines = (
    sa.select(Order)
    .join(Order.lines)
    .options(contains_eager(Order.lines))
    .order_by(Order.id, Line.id)
)

STATEMENTS: dict[str, Any] = {
    "an entity": sa.select(Order).order_by(Order.id),
    "an entity and its lines": _lines,
    "with a column": _lines.add_columns(Line.value),
    "two entities": sa.select(Order, Line).join(Order.lines).order_by(Line.id),
    "two entities and its lines": _lines.add_columns(Line),
    "columns": sa.select(Order.id, Order.total.label("sum")).order_by(Order.id),
    "an entity with a joined one": sa.select(Invoice).order_by(Invoice.id),
    "a bundle": sa.select(Bundle("b", Order.id, Order.total)).order_by(Order.id),
}
READS: dict[str, Callable[[Any], Any]] = {
    "all": lambda result: result.all(),
    "unique": lambda result: result.unique().all(),
    "unique by key": lambda result: result.unique(str).all(),
    "scalars": lambda result: result.scalars().all(),
    "unique scalars": lambda result: result.scalars().unique().all(),
    "unique, then scalars": lambda result: result.unique().scalars().all(),
    "first": lambda result: result.unique().first(),
    "mappings": lambda result: result.unique().mappings().all(),
    "columns": lambda result: result.unique().columns(0).all(),
    "partitions": lambda result: [list(part) for part in result.unique().partitions(2)],
    "keys": lambda result: list(result.keys()),
    "one": lambda result: result.one(),
}


def _seen(result: Any, read: Callable[[Any], Any]) -> str:
    """Return what the read returns, in words; or the class of its error."""
    try:
        return _in_words(read(result))
    except (InvalidRequestError, sa.exc.ArgumentError) as error:
        return type(error).__name__


def _in_words(found: Any) -> str:
    if isinstance(found, sa.Row):
        return f"Row{[_in_words(one) for one in found]}"
    if isinstance(found, (list, tuple)):
        return str([_in_words(one) for one in found])
    if isinstance(found, sa.RowMapping):
        return f"mapping of {[(key, _in_words(value)) for key, value in found.items()]}"
    if isinstance(found, (Order, Invoice, Line)):
        return f"{type(found).__name__} {found.id}"
    return str(found)


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
def test_it_is_read_in_every_way(session: LockingSession, name: str, lock: LockOptions) -> None:
    statement = STATEMENTS[name]
    locked = with_lock(statement, lock, None if name == "an entity with a joined one" else Order)
    for how, read in READS.items():
        with Session(session.get_bind()) as plain:
            expected = _seen(plain.execute(statement), read)
        with LockingSession(session.get_bind()) as locking:
            assert _seen(locking.execute(locked), read) == expected, how


def test_what_was_joined_is_loaded(session: LockingSession) -> None:
    locked = with_lock(_lines.where(Order.id == 1), ForUpdate)
    with pytest.raises(InvalidRequestError, match="unique"):
        session.scalars(locked).all()
    order = session.scalars(locked).unique().one()
    assert [line.value for line in order.lines] == [10, 20]
    assert list(session.held_locks) == [(Order, (1,))]
