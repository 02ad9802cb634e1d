"""Statements with ``with_for_update()`` for the row of order 1, as a product of their parts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import product
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import CompileError, DBAPIError, SQLAlchemyError
from sqlalchemy.orm import ORMExecuteState, aliased

from sa_doclock import LockingSession, LockNotSupported
from tests.support.databases import MATRIX, Database
from tests.support.models import Clause, Customer, Line, Order

pytestmark = [
    pytest.mark.read_committed,
    pytest.mark.filterwarnings("ignore:SELECT statement has a cartesian"),  # some shapes do
]


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


#: The locked select of the row of order 1, and its key for ``of=``.
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


#: The position of the locked select; the server reads all of it.
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
    """A statement, and the way to execute it."""

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
        """Execute it, and read all its rows."""
        DOORS[self.door](session, self)

    @property
    def is_read(self) -> bool:
        """True if others may hold the same lock."""
        return "read" in KINDS[self.kind]

    @property
    def is_listed(self) -> bool:
        """True if ``held_locks`` must list order 1: the rows contain it, or its whole key."""
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
    """Execute the statement without its lock; a listener adds the lock."""

    unlocked = shape.statement(locked=False)

    def add_lock(state: ORMExecuteState) -> None:
        if (
            state.statement is unlocked
        ):  # not SQLAlchemy's own SELECT of the rows that an UPDATE matches
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
    """Yield each select, place and kind by execute(), and each select and place by every method."""
    for select, place, kind in product(SELECTS, PLACES, KINDS):
        yield Shape(select, place, kind, "execute")
    for select, place, door in product(SELECTS, PLACES, DOORS):
        if door != "execute" and not (door == "Query" and place != "outermost"):
            yield Shape(select, place, "for update", door)


# --------------------------------------------------------------------------------------------------
# For many statement shapes: after the statement runs, a second connection finds the row locked.

_ROW = sa.select(ORDERS.c.id).where(ORDERS.c.id == 1).with_for_update(nowait=True)
_IN_A_RUN = 50
_PARTS = 3


class Prober:
    """A second connection, which tries to lock the row without waiting."""

    def __init__(self, database: Database) -> None:
        self._is_sqlite = database.name == "sqlite"
        at_once = {"connect_args": {"timeout": 0}} if self._is_sqlite else {}
        self._connection = database.engine(**at_once).connect()
        self.close = self._connection.close

    def finds_held(self, session: LockingSession, shape: Shape) -> bool:
        """Return whether the row is held; on SQLite a read is a snapshot transaction."""
        if self._is_sqlite and shape.is_read:
            driver: Any = session.connection().connection.driver_connection
            return bool(driver.in_transaction)
        try:
            if self._is_sqlite:
                self._connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                self._connection.execute(_ROW).all()
        except DBAPIError:
            return True
        finally:
            self._connection.rollback()
        return False


def _outcome(shape: Shape, session: LockingSession, prober: Prober) -> str:
    """Return the outcome of the statement: "held", "refused", or an error description."""
    try:
        shape.run(session)
    except LockNotSupported:
        return "refused"
    except (DBAPIError, CompileError):
        return "not on this server"
    # For a duplicate argument, Python sometimes raises KeyError in place of TypeError. SQLAlchemy
    # passes one for FOR UPDATE OF a subquery that has FOR UPDATE too.
    except (SQLAlchemyError, AttributeError, TypeError, KeyError) as error:
        return f"not SQLAlchemy's: {error}"
    if not prober.finds_held(session, shape):
        return "WRONG: not held"
    if shape.is_listed and (Order, (1,)) not in session.held_locks:
        return "WRONG: not listed"
    return "held"


def _outcomes(
    shapes: Iterable[Shape], make: Callable[[], LockingSession], database: Database
) -> dict[Shape, str]:
    outcomes: dict[Shape, str] = {}
    with closing(Prober(database)) as prober:
        for shape in shapes:
            with make() as session:
                outcomes[shape] = _outcome(shape, session, prober)
                session.rollback()
                if prober.finds_held(session, shape._replace(kind="for update")):
                    outcomes[shape] += ", WRONG: held afterwards"
    return outcomes


def _wrong_shapes(outcomes: dict[Shape, str]) -> str:
    return "\n".join(f"{shape}: {came}" for shape, came in outcomes.items() if "WRONG" in came)


def test_some_shapes(session_factory: Callable[[], LockingSession], documents: Database) -> None:
    seed = random.SystemRandom().randrange(2**32)
    shapes = random.Random(seed).sample([*all_shapes()], _IN_A_RUN)
    outcomes = _outcomes(shapes, session_factory, documents)
    assert not _wrong_shapes(outcomes), f"seed {seed}\n{_wrong_shapes(outcomes)}"


@pytest.mark.slow
@pytest.mark.parametrize("part", [_PARTS, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_all_shapes(
    session_factory: Callable[[], LockingSession], documents: Database, part: int
) -> None:
    """CI runs every third shape on each database, and other shapes on the next database."""
    first = [*MATRIX].index(documents.column) % part
    outcomes = _outcomes([*all_shapes()][first::part], session_factory, documents)
    assert not _wrong_shapes(outcomes), _wrong_shapes(outcomes)
    came = [*outcomes.values()]
    assert came.count("held") > 200 / part, {one: came.count(one) for one in {*came}}
