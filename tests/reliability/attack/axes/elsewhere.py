"""The same tables at a second place: in another schema, behind another engine, and on a replica."""

from __future__ import annotations

from collections.abc import Callable
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


def _naming(how: Callable[[LockingSession], dict[str, Any]]) -> dict[str, Any]:
    """Return the locks and writes whose statement names the second place itself."""
    locks: dict[str, Action] = {
        "there set": lambda s, doc: s.scalars(
            s.entity_set(Order, FOR_UPDATE).where(Order.id == doc), **how(s)
        ).one(),
        "there adopted": lambda s, doc: s.scalars(orders_of(doc).with_for_update(), **how(s)).one(),
        "there key": lambda s, doc: s.execute(
            sa.select(Order.id).where(Order.id == doc).with_for_update(), **how(s)
        ).one(),
        "there get": lambda s, doc: s.get_one(
            Order, doc, with_for_update=True, populate_existing=True, **how(s)
        ),
    }
    writes: dict[str, Counted] = {
        "there update": (
            lambda s, doc: s.execute(plus_one(Line, Line, 10 * doc), **how(s)),
            (("at_line", 0),),
        ),
        "there update header": (
            lambda s, doc: s.execute(plus_one(Order, Order, doc), **how(s)),
            (("at_order", 0),),
        ),
        "there update table": (
            lambda s, doc: s.execute(plus_one(LINES, LINES.c, 10 * doc), **how(s)),
            (("at_line", 0),),
        ),
    }
    return {"locks": locks, "writes": writes, "there": frozenset(locks) | frozenset(writes)}


#: SQLAlchemy has no map for a table(); a schema that a statement names itself is another one, as docs/limits.md says.
MAPPED_SCHEMA = Axis(
    "a second schema by a map",
    turns={
        "maps the connection": _maps_connection,
        "maps the engine": _binds(MAP),
        "maps nothing": _binds({}),
    },
    without=OUTSIDE | {"named schema", "update named schema"},
    unmoved=frozenset({"table()", "update table()", "insert table()"}),
    **_naming(lambda _: {"execution_options": MAP}),
    both=True,
    open=_open,
    where=_where,
    ends=lambda world, _: world.places,
)
#: SQLite has no current schema.
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
_ENGINES = "here and there"


def _open_both(world: World, session: type[LockingSession] = LockingSession) -> LockingSession:
    engines = [place.engine for place in world.places]
    return session(engines[0], info={_ENGINES: engines})


def _bound(world: World, session: LockingSession) -> Place:
    return next(place for place in world.places if place.engine is session.bind)


def _goes(number: int) -> Turn:
    def turn(scenario: Any, _: int) -> None:
        scenario.session.bind = scenario.session.info[_ENGINES][number]
        scenario.session.expire_all()  # one object cannot be the rows of two databases

    return turn


SECOND_ENGINE = Axis(
    "a second engine",
    turns={"goes there": _goes(1), "goes back": _goes(0)},
    without=OUTSIDE,
    both=True,
    open=_open_both,
    where=_bound,
    ends=lambda world, session: [_bound(world, session)],
    **_naming(lambda s: {"bind_arguments": {"bind": s.info[_ENGINES][1]}}),
)


class _Routing(LockingSession):
    """As SQLAlchemy's documentation has it; this replica never catches up."""

    def get_bind(self, mapper: Any = None, *, clause: Any = None, **_: Any) -> Any:
        """Return the primary for a flush and a statement that writes."""
        writes = self._flushing or isinstance(clause, sa.Update | sa.Delete | sa.Insert)
        return self.info[_ENGINES][0 if writes else 1]


REPLICA = Axis(
    "a replica",
    # The replica has no new document, and another name for its schema.
    without=OUTSIDE | {"inserts", "named schema", "update named schema"},
    open=lambda world: _open_both(world, _Routing),
    ends=lambda *_: (),  # a text("COMMIT") goes to the replica
)
LEVEL = Axis(
    "repeatable read",
    SERVERS,
    open=lambda world: LockingSession(
        world.here.engine.execution_options(isolation_level="REPEATABLE READ")
    ),
)
