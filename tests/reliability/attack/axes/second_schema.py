"""A second schema with the same tables, by a schema_translate_map and by foreign SQL."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sa_doclock import LockingSession
from tests.reliability.attack.actions import FOR_UPDATE, Action, Counted, orders_of, plus_one
from tests.reliability.attack.axes.axis import OUTSIDE, SERVERS, Axis, Turn
from tests.reliability.attack.models import LINES, Line, Order
from tests.reliability.attack.world import THERE, Place, World

MAP = {"schema_translate_map": {None: THERE}}
_WENT = "the schema was set by foreign SQL"
_CURRENT = {"postgresql": "SELECT current_schema()"}


def _open(world: World) -> LockingSession:
    world.both_schemas.dispose()  # SET search_path stays on the pooled connection
    return LockingSession(world.both_schemas)


def _where(world: World, session: LockingSession) -> Place:
    """Ask the connection, past SQLAlchemy: the library does not see it."""
    if not session.in_transaction() and _WENT not in session.info:
        maps = session.get_bind().get_execution_options()
        return world.there if "schema_translate_map" in maps else world.here
    connection = session.connection()
    if "schema_translate_map" in connection.get_execution_options():
        return world.there
    if _WENT not in session.info:
        return world.here
    cursor = connection.connection.cursor()
    cursor.execute(_CURRENT.get(world.name, "SELECT DATABASE()"))
    row = cursor.fetchone()
    return world.there if row is not None and row[0] == THERE else world.here


def _by_foreign_sql(place: str) -> Turn:
    def turn(scenario: Any, _: int) -> None:
        schema = getattr(scenario.world, place).schema
        scenario.session.info[_WENT] = True
        verb = "SET search_path TO" if scenario.world.name == "postgresql" else "USE"
        scenario.session.execute(sa.text(f"{verb} {schema}"))

    return turn


def _maps_connection(scenario: Any, _: int) -> None:
    scenario.session.connection().execution_options(**MAP)


def _binds(options: dict[str, Any]) -> Turn:
    def turn(scenario: Any, _: int) -> None:
        scenario.commit()  # SQLAlchemy does not let two engines share the connection
        scenario.session.bind = scenario.world.both_schemas.execution_options(**options)

    return turn


_LOCKS: dict[str, Action] = {
    "there set": lambda s, doc: s.scalars(
        s.entity_set(Order, FOR_UPDATE).where(Order.id == doc).execution_options(**MAP)
    ).one(),
    "there adopted": lambda s, doc: s.scalars(
        orders_of(doc).with_for_update(), execution_options=MAP
    ).one(),
    "there key": lambda s, doc: s.execute(
        sa.select(Order.id).where(Order.id == doc).with_for_update().execution_options(**MAP)
    ).one(),
    "there get": lambda s, doc: s.get_one(
        Order, doc, with_for_update=True, execution_options=MAP, populate_existing=True
    ),
}
_WRITES: dict[str, Counted] = {
    "there update": (
        lambda s, doc: s.execute(plus_one(Line, Line, 10 * doc).execution_options(**MAP)),
        (("at_line", 0),),
    ),
    "there update header": (
        lambda s, doc: s.execute(plus_one(Order, Order, doc), execution_options=MAP),
        (("at_order", 0),),
    ),
    "there update table": (
        lambda s, doc: s.execute(plus_one(LINES, LINES.c, 10 * doc).execution_options(**MAP)),
        (("at_line", 0),),
    ),
}
_MAPPED: dict[str, Turn] = {
    "maps the connection": _maps_connection,
    "maps the engine": _binds(MAP),
    "maps nothing": _binds({}),
}
#: SQLite has no current schema.
MAPPED_SCHEMA = Axis(
    "a second schema by a map",
    locks=_LOCKS,
    writes=_WRITES,
    turns=_MAPPED,
    without=OUTSIDE,
    there=frozenset(_LOCKS) | frozenset(_WRITES),
    both=True,
    open=_open,
    where=_where,
    ends=lambda world, _: world.places,
)
SET_SCHEMA = Axis(
    "a second schema by foreign SQL",
    SERVERS,
    turns={
        "sets the schema": _by_foreign_sql("there"),
        "sets the schema back": _by_foreign_sql("here"),
    },
    without=OUTSIDE,
    both=True,
    open=_open,
    where=_where,
    ends=lambda world, _: world.places,
)
