"""Entity shapes, session states, changes of a select, and values that are none of these."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import Engine, Select, exists, func, literal, select, text, union_all, update
from sqlalchemy.orm import aliased, defaultload, joinedload, selectinload, subqueryload

from sa_doclock import LockingSession, LockOptions
from sa_doclock.core.documents.mapping import header_table
from sa_doclock.options import base_of
from tests.sql.driver import MISSING, Script
from tests.sql.models import (
    Building,
    ColdStore,
    Contract,
    Customer,
    Delivery,
    Fault,
    Invoice,
    Journal,
    Lease,
    Line,
    Order,
    Project,
    Ticket,
    Voucher,
)

# --------------------------------------------------------------------------------------------------
# The shapes of entities that are locked, with the header's name in SQL.


class Shape(NamedTuple):
    """:ivar kind: the value of the polymorphic column in the only row."""

    entity: Any
    header: str
    key: Any = 1
    kind: str = ""

    @property
    def missing(self) -> Any:
        """A key without a row."""
        return (MISSING, MISSING) if isinstance(self.key, tuple) else MISSING


_derived = aliased(Order, select(Order).subquery(), name="derived")

CLASSES = {
    "plain": Shape(Order, "shop_order"),
    "composite key": Shape(Voucher, "shop_voucher", (1, 1)),
    "schema and quoted names": Shape(Journal, "Journal of Group"),
    "joined inheritance": Shape(Lease, "shop_contract", kind="lease"),
    "joined inheritance, root": Shape(Contract, "shop_contract", kind="lease"),
    "with_polymorphic": Shape(Project, "shop_project", kind="building"),
    "with_polymorphic, subclass": Shape(Building, "shop_project", kind="building"),
    "single inheritance": Shape(Fault, "shop_ticket", kind="fault"),
    "single inheritance, root": Shape(Ticket, "shop_ticket", kind="fault"),
    "concrete inheritance": Shape(ColdStore, "shop_cold_store"),
    "mapped lazy='joined'": Shape(Invoice, "shop_invoice"),
    "declared document": Shape(Delivery, "shop_delivery"),
}
"""The entities that have a key to ask for."""

ENTITIES = CLASSES | {
    "aliased": Shape(aliased(Order, name="o"), "o"),
    "aliased flat": Shape(
        aliased(Lease, name="rented", flat=True), "rented_shop_contract", kind="lease"
    ),
    "aliased, not flat": Shape(aliased(Lease, name="rented"), "?", kind="lease"),
    "of a subquery": Shape(_derived, "?"),
}
"""The entities that a select can be made of."""

_NO_SCHEMA = {"sqlite": {"schema and quoted names"}}  # the file has no such schema


def exists_on(database: str, shape: str) -> bool:
    return shape not in _NO_SCHEMA.get(database, ())


def put_kinds(database: str, engine: Engine, script: Script) -> None:
    """Give the rows in SQLite's file the kinds of these shapes."""
    if database == "sqlite":
        with engine.begin() as connection:
            for root, kind in (Contract, "lease"), (Project, "building"), (Ticket, "fault"):
                connection.execute(update(root).values(kind=kind))
        script.sent.clear()


# --------------------------------------------------------------------------------------------------
# The states of a session before the lock call.

Prepare = Callable[[LockingSession, Shape], Any]
"""A function that brings a session into a state.  Keep its result: the identity map is weak."""

_new_ids = itertools.count(1000)


def _class_of(shape: Shape) -> Any:
    return shape.entity if isinstance(shape.entity, type) else None


def _held(lock: LockOptions) -> Prepare:
    def prepare(session: LockingSession, shape: Shape) -> Any:
        entity = _class_of(shape)
        return entity and session.get_entity(entity, shape.key, lock)

    return prepare


def _other(lock: LockOptions) -> Prepare:
    return lambda session, _shape: session.get_entity(Customer, 1, lock)


def _savepoint(session: LockingSession, _shape: Shape) -> Any:
    return session.begin_nested()


def _read_in_savepoint(session: LockingSession, _shape: Shape) -> Any:
    return session.begin_nested(), session.get(Customer, 1)


def _changed(session: LockingSession, shape: Shape) -> Any:
    entity = _class_of(shape)
    found = entity and session.get(entity, shape.key)
    if found is not None:
        found.total += 1
    return found


def _rolled_back(session: LockingSession, _shape: Shape) -> Any:
    session.get(Customer, 1)
    session.rollback()


def _new_elsewhere(session: LockingSession, _shape: Shape) -> Any:
    session.add(Customer(id=next(_new_ids), name="new"))


def _flushed(session: LockingSession, shape: Shape) -> Any:
    _new_elsewhere(session, shape)
    session.flush()


STATES: Mapping[str, Prepare] = {
    "no transaction": lambda _session, _shape: None,
    "open by a read": lambda session, _shape: session.get(Customer, 1),
    "open by begin()": lambda session, _shape: session.begin(),
    "savepoint": _savepoint,
    "read in a savepoint": _read_in_savepoint,
    "loaded": lambda session, shape: _class_of(shape) and session.get(_class_of(shape), shape.key),
    "changed": _changed,
    "new elsewhere": _new_elsewhere,
    "flushed elsewhere": _flushed,
    "held ForUpdate": _held(LockOptions.ForUpdate),
    "held SharedRead": _held(LockOptions.SharedRead),
    "held SnapshotRead": _held(LockOptions.SnapshotRead),
    "another held ForUpdate": _other(LockOptions.ForUpdate),
    "another held SharedRead": _other(LockOptions.SharedRead),
    "another held SnapshotRead": _other(LockOptions.SnapshotRead),
    "rolled back": _rolled_back,
}

AFTERWARDS = (
    *("savepoint", "read in a savepoint", "new elsewhere", "loaded"),
    *("another held ForUpdate", "another held SharedRead"),
)
"""The states that may follow the first one; none ends a transaction."""


def brought_by(state: str, lock: LockOptions) -> bool:
    """Return whether the state already holds the same document as strongly, so that the session sends nothing."""
    if not state.startswith("held "):
        return False
    strength = (LockOptions.SnapshotRead, LockOptions.SharedRead, LockOptions.ForUpdate)
    held, wanted = LockOptions[state.removeprefix("held ")], base_of(lock)
    return wanted in strength and strength.index(held) >= strength.index(wanted)


# --------------------------------------------------------------------------------------------------
# Changes of a select before and after it gets its lock.

Change = Callable[[Any, Any], Any]
"""Of a statement and its entity; what comes out may be no Select any more."""


def _in_order(statement: Select[Any], entity: Any) -> Select[Any]:
    return statement.order_by(_keys(entity)[0])


def _keys(entity: Any) -> list[Any]:
    names = ("year", "number") if hasattr(entity, "year") else ("id",)
    return [getattr(entity, name) for name in names]


def _total(entity: Any) -> Any:
    return entity.total


_buyer, _payer = aliased(Customer, name="buyer"), aliased(Customer, name="payer")

CHANGES: Mapping[str, Change] = {
    "where": lambda statement, entity: statement.where(_total(entity) < 100),
    "where of a key": lambda statement, entity: statement.where(_keys(entity)[0] == 1),
    "where nothing": lambda statement, _: statement.where(literal(0) == 1),
    "order_by": _in_order,
    "limit": lambda statement, entity: _in_order(statement, entity).limit(10),
    "limit 0": lambda statement, _: statement.limit(0),
    "fetch": lambda statement, entity: _in_order(statement, entity).fetch(10),
    "offset": lambda statement, entity: _in_order(statement, entity).limit(5).offset(0),
    "join": lambda statement, entity: statement.join(_buyer, _buyer.id <= _total(entity)),
    "outer join": lambda statement, entity: statement.outerjoin(
        _payer, _payer.id == _total(entity)
    ),
    "join of a subquery": lambda statement, entity: statement.join(
        (sub := select(Line.order_id).subquery()), sub.c.order_id == _keys(entity)[0]
    ),
    "exists": lambda statement, entity: statement.where(
        exists().where(Line.order_id == _keys(entity)[0])
    ),
    "in a subquery": lambda statement, entity: statement.where(
        _keys(entity)[0].in_(select(Line.order_id))
    ),
    "another entity": lambda statement, entity: statement.add_columns(Customer).join(
        Customer, Customer.id <= _total(entity)
    ),
    "a column more": lambda statement, entity: statement.add_columns(_total(entity)),
    "a scalar subquery": lambda statement, entity: statement.add_columns(
        select(func.max(Line.value)).where(Line.order_id == _keys(entity)[0]).scalar_subquery()
    ),
    "a key alone": lambda statement, entity: statement.with_only_columns(*_keys(entity)),
    "a count alone": lambda statement, _: statement.with_only_columns(func.count()),
    "distinct": lambda statement, _: statement.distinct(),
    "group_by": lambda statement, entity: statement.group_by(*_keys(entity)),
    "having": lambda statement, _: statement.having(func.count() > 0),
    "union": lambda statement, _: union_all(statement, statement),
    "from_statement": lambda statement, entity: select(entity).from_statement(statement),
    "text": lambda *_: text("SELECT 1"),
    "selectinload": lambda statement, _: statement.options(selectinload("*")),
    "joinedload": lambda statement, _: statement.options(joinedload("*")),
    "subqueryload": lambda statement, _: statement.options(subqueryload("*")),
    "defaultload": lambda statement, _: statement.options(defaultload("*")),
    "with_for_update": lambda statement, _: statement.with_for_update(read=True),
    "hint": lambda statement, entity: statement.with_hint(
        header_table(entity), "WITH (NOLOCK)", "mssql"
    ),
    "hint everywhere": lambda statement, entity: statement.with_hint(
        header_table(entity), "/* ! */"
    ),
    "hint of another table": lambda statement, _: statement.with_hint(
        Customer, "WITH (NOLOCK)", "mssql"
    ),
    "populate_existing": lambda statement, _: statement.execution_options(populate_existing=True),
    "yield_per": lambda statement, _: statement.execution_options(yield_per=5),
    "stream_results": lambda statement, _: statement.execution_options(stream_results=True),
    "autoflush": lambda statement, _: statement.execution_options(autoflush=True),
}

USUAL = ("where", "where of a key", "order_by", "limit", "join", "another entity", "a column more")
"""The changes that most programs make."""


# --------------------------------------------------------------------------------------------------
# Wrong values that a program can pass for any argument.


class Unmapped:
    """Neither an entity nor a key."""


JUNK: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**70, 0.5, math.nan, math.inf, -math.inf, Decimal(1)),
    *("", "x", "\0", "\ud800", b"x", (), (None,), (1, None), [1], {}, {"id": 1}, {"x": 1}, {1}),
    *(range(2), iter(()), object(), int, Unmapped, Unmapped(), Order, Order.id, Line.order, len),
)
