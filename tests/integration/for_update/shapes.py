"""Statements that carry ``with_for_update()`` for the row of order 1, as a product of what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import ORMExecuteState, aliased

from sa_doclock import LockingSession
from tests.support.models import Clause, Customer, Line, Order

ORDERS: Any = Order.__table__
LINES: Any = Line.__table__
CLAUSES: Any = Clause.__table__
CUSTOMERS: Any = Customer.__table__
OTHER: Any = aliased(Order, name="other")
ALIAS: Any = ORDERS.alias("also")

Statement = Any
Run = Callable[[LockingSession, "Shape"], None]


def _named(select: Any, key: Any) -> tuple[Any, Any]:
    return select.where(key == 1), key


#: What is selected and locked: a select of the row of order 1, and its key, for ``of=``.
SELECTS: dict[str, tuple[Any, Any]] = {
    "class": _named(sa.select(Order), Order.id),
    "attribute": _named(sa.select(Order.id), Order.id),
    "attributes": _named(sa.select(Order.id, Order.total), Order.id),
    "aliased": _named(sa.select(OTHER), OTHER.id),
    "table": _named(sa.select(ORDERS), ORDERS.c.id),
    "column": _named(sa.select(ORDERS.c.id), ORDERS.c.id),
    "alias of the table": _named(sa.select(ALIAS.c.id), ALIAS.c.id),
    "join": _named(sa.select(Order.id).join(Line, Line.order_id == Order.id), Order.id),
}

KINDS: dict[str, dict[str, Any]] = {
    "for update": {},
    "read": {"read": True},
    "nowait": {"nowait": True},
    "skip locked": {"skip_locked": True},
    "of": {"of": True},
    "key share": {"key_share": True},
    "read key share": {"read": True, "key_share": True},
}


def _scalar(locked: Any) -> Any:
    return locked.with_only_columns(next(iter(locked.selected_columns))).scalar_subquery()


def _joined(other: Any) -> Any:
    return sa.select(CUSTOMERS.c.name).join(other, other.c.id == CUSTOMERS.c.id)


#: Where the locked select stands; the server reads all of it.
PLACES: dict[str, Callable[[Any], Statement]] = {
    "outermost": lambda locked: locked,
    "from_statement": lambda locked: sa.select(Order).from_statement(locked),
    "CTE": lambda locked: sa.select(locked.cte()),
    "joined CTE": lambda locked: _joined(locked.cte()),
    "CTE in IN": lambda locked: sa.select(CUSTOMERS).where(
        CUSTOMERS.c.id.in_(sa.select(locked.cte().c.id))
    ),
    "subquery": lambda locked: sa.select(locked.subquery()),
    "column of a subquery": lambda locked: sa.select(locked.subquery().c.id),
    "joined subquery": lambda locked: _joined(locked.subquery()),
    "subquery of a subquery": lambda locked: sa.select(sa.select(locked.subquery()).subquery()),
    "subquery as a class": lambda locked: sa.select(aliased(Order, locked.subquery()).id),
    "IN": lambda locked: sa.select(Customer).where(Customer.id.in_(_scalar(locked).element)),
    "EXISTS": lambda locked: sa.select(CUSTOMERS).where(locked.exists()),
    "scalar": lambda locked: sa.select(CUSTOMERS.c.id, _scalar(locked)),
    "LATERAL": lambda locked: sa.select(CUSTOMERS.c.id).join(locked.lateral(), sa.true()),
    "union": lambda locked: sa.select(
        sa.union_all(sa.select(locked.subquery().c.id), sa.select(CUSTOMERS.c.id)).subquery()
    ),
    "of a union": lambda locked: sa.union(locked, locked).with_for_update(),
    "union with a lock in a subquery": lambda locked: sa.select(
        sa.union(locked, locked).with_for_update().subquery()
    ),
    "INSERT of a SELECT": lambda locked: sa.insert(CUSTOMERS).from_select(
        ["id", "name"], sa.select(locked.subquery().c.id + 100, sa.literal("x"))
    ),
    "INSERT of a value": lambda locked: sa.insert(CUSTOMERS).values(
        id=_scalar(locked) + 200, name="x"
    ),
    "INSERT of many values": lambda locked: sa.insert(CUSTOMERS).values(
        [{"id": _scalar(locked) + 300, "name": "x"}, {"id": 400, "name": "x"}]
    ),
    "UPDATE where": lambda locked: (
        sa.update(CUSTOMERS).where(CUSTOMERS.c.id.in_(_scalar(locked).element)).values(name="x")
    ),
    "UPDATE of a CTE's rows": lambda locked: (
        sa.update(CUSTOMERS).where(CUSTOMERS.c.id == locked.cte().c.id).values(name="x")
    ),
    "UPDATE of a class": lambda locked: (
        sa.update(Customer).where(Customer.id.in_(_scalar(locked).element)).values(name="x")
    ),
    "UPDATE to a value": lambda locked: (
        sa.update(CUSTOMERS)
        .where(CUSTOMERS.c.id == 1)
        .values(name=sa.cast(_scalar(locked), sa.String(40)))
    ),
    "DELETE where": lambda locked: sa.delete(CLAUSES).where(
        CLAUSES.c.contract_id.in_(_scalar(locked).element)
    ),
}


class Shape(NamedTuple):
    """One statement and the way in which it is executed."""

    select: str
    place: str
    kind: str
    door: str

    def __str__(self) -> str:
        return ", ".join(self)

    def statement(self, *, locked: bool = True) -> Statement:
        """Build the statement anew, as a program does at each call."""
        select, key = SELECTS[self.select]
        arguments = {**KINDS[self.kind]}
        if "of" in arguments:
            arguments["of"] = key
        return PLACES[self.place](select.with_for_update(**arguments) if locked else select)

    def run(self, session: LockingSession) -> None:
        """Execute it, and read all of its rows."""
        DOORS[self.door](session, self)

    @property
    def is_read(self) -> bool:
        """True if others may have the same lock."""
        return "read" in KINDS[self.kind]

    @property
    def is_listed(self) -> bool:
        """True if ``held_locks`` must have order 1: the rows have it, or its whole key."""
        if self.door in ("connection", "stream") or self.kind == "read key share":
            return False
        if self.place == "outermost" and self.door != "Query":
            return True
        is_class = self.place in ("from_statement", "outermost")
        return is_class and self.select in ("class", "attributes")


def _all(result: Any) -> None:
    if getattr(result, "returns_rows", True):
        result.all()


def _execute(session: LockingSession, shape: Shape) -> None:
    _all(session.execute(shape.statement()))


def _scalars(session: LockingSession, shape: Shape) -> None:
    if getattr(shape.statement(), "is_select", False):
        session.scalars(shape.statement()).all()
    else:
        _execute(session, shape)


def _connection(session: LockingSession, shape: Shape) -> None:
    _all(session.connection().execute(shape.statement()))


def _stream(session: LockingSession, shape: Shape) -> None:
    _all(session.execute(shape.statement(), execution_options={"yield_per": 1}))


def _lambda(session: LockingSession, shape: Shape) -> None:
    statement = shape.statement()
    _all(session.execute(sa.lambda_stmt(lambda: statement)))


def _listener(session: LockingSession, shape: Shape) -> None:
    """Execute the statement without its lock, which a listener adds."""

    unlocked = shape.statement(locked=False)

    def add_lock(state: ORMExecuteState) -> None:
        if (
            state.statement is unlocked
        ):  # not SQLAlchemy's own SELECT of the rows that an UPDATE meets
            state.statement = shape.statement()

    event.listen(session, "do_orm_execute", add_lock)
    _all(session.execute(unlocked))


def _query(session: LockingSession, shape: Shape) -> None:
    session.query(Order).from_statement(shape.statement()).all()


DOORS: dict[str, Run] = {
    "execute": _execute,
    "scalars": _scalars,
    "connection": _connection,
    "stream": _stream,
    "lambda": _lambda,
    "listener": _listener,
    "Query": _query,
}


def all_shapes() -> Iterator[Shape]:
    """Yield each select, place and kind by execute(), and each select and place by every door."""
    for select, place, kind in product(SELECTS, PLACES, KINDS):
        yield Shape(select, place, kind, "execute")
    for select, place, door in product(SELECTS, PLACES, DOORS):
        if door != "execute" and not (door == "Query" and place != "outermost"):
            yield Shape(select, place, "for update", door)
