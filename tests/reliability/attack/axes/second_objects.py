"""Second objects for a row: another Table, an identity token, and the options of a statement."""

from __future__ import annotations

import warnings
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import LegacyAPIWarning
from sqlalchemy.orm import (
    Bundle,
    aliased,
    defer,
    joinedload,
    lazyload,
    load_only,
    raiseload,
    selectinload,
    subqueryload,
)

from sa_doclock import LockingSession
from tests.reliability.attack.actions import FOR_UPDATE, Action, Counted, orders_of, plus_one
from tests.reliability.attack.axes.axis import Axis
from tests.reliability.attack.models import LINES, ORDERS, TOKEN, Line, Order

COPY = sa.MetaData()
ORDERS_COPY, LINES_COPY = (one.to_metadata(COPY) for one in (ORDERS, LINES))


def _light(table: Any, schema: str | None = None) -> Any:
    return sa.table(table.name, *(sa.column(one.name) for one in table.columns), schema=schema)


ORDERS_LIGHT, LINES_LIGHT = _light(ORDERS), _light(LINES)


def _named(session: LockingSession, table: Any) -> Any:
    """Return the table with the name of the schema that it is in by default."""
    return _light(table, session.connection().dialect.default_schema_name)


def _locks(table: Any, session: LockingSession, doc: int) -> Any:
    return session.execute(sa.select(table).where(table.c.id == doc).with_for_update()).one()


def _inserts(table: Any) -> Counted:
    def action(session: LockingSession, doc: int) -> None:
        latest = sa.select(sa.func.max(LINES.c.id)).where(LINES.c.order_id == doc)
        key = session.scalars(latest).one() + 1
        session.execute(sa.insert(table).values(id=key, order_id=doc, count=0))

    return action, (("lines", 0),)


def _updates(table: Any, counter: str, factor: int) -> Counted:
    def action(session: LockingSession, doc: int) -> Any:
        return session.execute(plus_one(table, table.c, factor * doc))

    return action, ((counter, 0),)


def _update_named(session: LockingSession, doc: int) -> Any:
    table = _named(session, LINES)
    return session.execute(plus_one(table, table.c, 10 * doc))


def _update_of_order(session: LockingSession, doc: int) -> Any:
    """Count up the line of this key and of this document."""
    line = plus_one(LINES_COPY, LINES_COPY.c, 10 * doc)
    return session.execute(line.where(LINES_COPY.c.order_id == doc))


SECOND_TABLE = Axis(
    "a second Table",
    locks={
        "copy": lambda s, doc: _locks(ORDERS_COPY, s, doc),
        "table()": lambda s, doc: _locks(ORDERS_LIGHT, s, doc),
        "named schema": lambda s, doc: _locks(_named(s, ORDERS), s, doc),
        "alias of a copy": lambda s, doc: _locks(ORDERS_COPY.alias("other"), s, doc),
    },
    writes={
        "update copy": _updates(LINES_COPY, "at_line", 10),
        "update header copy": _updates(ORDERS_COPY, "at_order", 1),
        "update table()": _updates(LINES_LIGHT, "at_line", 10),
        "update named schema": (_update_named, (("at_line", 0),)),
        "update by two conditions": (_update_of_order, (("at_line", 0),)),
        "insert copy": _inserts(LINES_COPY),
        "insert table()": _inserts(LINES_LIGHT),
    },
)


def _adds(entity: Any, counter: str, factor: int) -> Counted:
    def action(session: LockingSession, doc: int) -> Any:
        row = session.get_one(entity, factor * doc, identity_token=TOKEN)
        row.count += 1
        session.flush()
        return row

    return action, ((counter, 0),)


def _reads_by_token(scenario: Any, doc: int) -> None:
    rows = [
        scenario.session.get(Order, doc, identity_token=TOKEN),
        scenario.session.get(Line, 10 * doc, identity_token=TOKEN),
    ]
    scenario.kept += [*rows, *(row.count for row in rows if row is not None)]


IDENTITY_TOKEN = Axis(
    "an identity token",
    locks={
        "token get": lambda s, doc: s.get_one(
            Order, doc, identity_token=TOKEN, with_for_update=True
        ),
        "token select": lambda s, doc: s.scalars(
            orders_of(doc).with_for_update(), execution_options={"identity_token": TOKEN}
        ).one(),
    },
    writes={
        "header by token": _adds(Order, "at_order", 1),
        "line by token": _adds(Line, "at_line", 10),
    },
    turns={"reads by token": _reads_by_token},
)


def _adopted(*options: Any) -> Action:
    return lambda s, doc: (
        s.scalars(orders_of(doc).options(*options).with_for_update(of=Order)).unique().one()
    )


def _ours(*options: Any) -> Action:
    return lambda s, doc: s.get_entity(Order, doc, FOR_UPDATE, options=options)


def _of_alias(session: LockingSession, doc: int) -> Any:
    other = aliased(Order)
    of_id = sa.select(other).where(other.id == doc).options(load_only(other.id))
    return session.scalars(of_id.with_for_update()).one()


def _of_constant(session: LockingSession, doc: int) -> None:
    """Lock a row that is not returned: its object is read again, though nothing is held."""
    of_id = sa.select(sa.literal(1)).select_from(Order).where(Order.id == doc)
    session.execute(of_id.with_for_update()).all()
    order = session.identity_map.get(sa.inspect(Order).identity_key_from_primary_key((doc,)))
    if order is not None and not session.dirty and (Order, (doc,)) not in session.held_locks:
        now = session.scalar(sa.select(ORDERS.c.count).where(ORDERS.c.id == doc))
        assert order.count == now, "locked, and of before"


def _query_get(session: LockingSession, doc: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LegacyAPIWarning)
        return session.query(Order).with_for_update().get(doc)


def _reads_in_part(scenario: Any, _: int) -> None:
    """Read all but the counter; without its version SQLAlchemy's own refresh(with_for_update=) fails."""
    in_part = load_only(Order.id, Order.version)
    scenario.kept += scenario.session.scalars(sa.select(Order).options(in_part))


LOADER_OPTIONS = Axis(
    "loader options",
    locks={
        "load_only": _adopted(load_only(Order.id)),
        "defer": _adopted(defer(Order.count)),
        "joinedload": _adopted(joinedload(Order.lines)),
        "selectinload": _adopted(selectinload(Order.lines)),
        "subqueryload": _adopted(subqueryload(Order.remarks)),
        "raiseload": _adopted(raiseload(Order.lines)),
        "lazyload": _adopted(lazyload("*")),
        "ours, load_only": _ours(load_only(Order.version)),
        "ours, defer": _ours(defer(Order.count)),
        "ours, joinedload": _ours(joinedload(Order.lines)),
        "get of load_only": lambda s, doc: s.get_one(
            Order, doc, with_for_update=True, options=[load_only(Order.version)]
        ),
        "Query get": _query_get,
        "populate_existing=False": lambda s, doc: s.scalars(
            orders_of(doc).with_for_update(), execution_options={"populate_existing": False}
        ).one(),
        "bundle": lambda s, doc: s.execute(
            sa.select(Bundle("of", Order.id, Order.count)).where(Order.id == doc).with_for_update()
        ).one(),
        "alias, load_only": _of_alias,
        "a constant": _of_constant,
    },
    turns={"reads with load_only": _reads_in_part},
)
