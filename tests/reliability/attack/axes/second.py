"""The same tables at a second place, and second objects for a row."""

from __future__ import annotations

import warnings
from collections.abc import Callable
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
from tests.reliability.attack.axes.axis import OUTSIDE, SERVERS, Axis, Turn
from tests.reliability.attack.world import LINES, ORDERS, THERE, TOKEN, Line, Order, Place, World

# --------------------------------------------------------------------------------------------------
# The same tables in a second place: another schema, another engine, a replica.

MAP = {"schema_translate_map": {None: THERE}}
_WENT = "the schema was set by foreign SQL"
_CURRENT = {"postgresql": "SELECT current_schema()"}


def _open(world: World) -> LockingSession:
    world.both_schemas.dispose()  # SET search_path would persist on the pooled connection
    return LockingSession(world.both_schemas)


def _where(world: World, session: LockingSession) -> Place:
    """Ask the connection without SQLAlchemy, so that the library does not see it."""
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
        scenario.commit()  # two engines cannot share the connection in SQLAlchemy
        scenario.session.bind = scenario.world.both_schemas.execution_options(**options)

    return turn


def _naming(how: Callable[[LockingSession], dict[str, Any]]) -> dict[str, Any]:
    """Return the locks and writes whose statements name the second place themselves."""
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


#: SQLAlchemy does not map a table(); a schema named in a statement is a different schema, as
#: docs/limits.md explains.
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
        scenario.session.expire_all()  # one object cannot represent rows of two databases

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
    """Routes as in SQLAlchemy's documentation; this replica never catches up."""

    def get_bind(self, mapper: Any = None, *, clause: Any = None, **_: Any) -> Any:
        """Return the primary for a flush and for a statement that writes."""
        writes = self._flushing or isinstance(clause, sa.Update | sa.Delete | sa.Insert)
        return self.info[_ENGINES][0 if writes else 1]


REPLICA = Axis(
    "a replica",
    without=OUTSIDE | {"inserts"},  # the replica lacks the new document
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


# --------------------------------------------------------------------------------------------------
# Second objects for a row: another Table, an identity token, and statement options.

COPY = sa.MetaData()
ORDERS_COPY, LINES_COPY = (one.to_metadata(COPY) for one in (ORDERS, LINES))


def _light(table: Any, schema: str | None = None) -> Any:
    return sa.table(table.name, *(sa.column(one.name) for one in table.columns), schema=schema)


ORDERS_LIGHT, LINES_LIGHT = _light(ORDERS), _light(LINES)


def _named(session: LockingSession, table: Any) -> Any:
    """Return the table with the schema that the session writes to: a replica has another schema."""
    primary = session.connection({"clause": sa.update(table)})
    return _light(table, primary.dialect.default_schema_name)


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
    """Increment the counter of the line with this key and this document."""
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
    """Lock a row without returning it: the session reads its object again, though it holds no document."""
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
    """Read all columns except the counter; without the version, SQLAlchemy's own refresh(with_for_update=) fails."""
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
