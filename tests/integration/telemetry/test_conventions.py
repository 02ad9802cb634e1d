"""OpenTelemetry's conventions for databases: attributes of spans, their kind, a gauge of held locks."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import sqlalchemy as sa
from opentelemetry.trace import SpanKind
from sqlalchemy.exc import NoResultFound, ProgrammingError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from sa_doclock.opentelemetry import uninstrument
from tests.integration.telemetry.conftest import Recorded
from tests.support.models import Contract, Lease, Order

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait
Session = LockingSession

pytestmark = pytest.mark.read_committed

SYSTEMS = {"mssql": "microsoft.sql_server"}


def database_of(span: Any) -> dict[str, Any]:
    """Return the attributes that are not ours."""
    return {key: value for key, value in span.attributes.items() if not key.startswith("doclock.")}


def expected(engine: sa.Engine, table: str | None) -> dict[str, Any]:
    name = "mariadb" if getattr(engine.dialect, "is_mariadb", False) else engine.dialect.name
    found = {
        "db.system.name": SYSTEMS.get(name, name),
        "db.namespace": engine.url.database,
        "db.collection.name": table,
        "server.address": engine.url.host,
        "server.port": engine.url.port,
    }
    return {key: value for key, value in found.items() if value is not None}


def test_a_span_says_where_its_database_is(
    session: Session, other: Session, engine: sa.Engine, reported: Recorded
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate | NoWait)
    session.rollback()
    other.rollback()
    session.lock_key("user:42")
    session.rollback()
    session.get_one_entity(Lease, 1, ForUpdate)
    granted, refused, named, subclass = reported.spans
    assert {span.kind for span in reported.spans} == {SpanKind.CLIENT}
    orders = expected(engine, "lk_order")
    assert database_of(granted) == orders
    assert database_of(refused) == {**orders, "error.type": "LockNotAvailable"}
    assert database_of(named) == expected(engine, None)
    assert database_of(subclass) == expected(engine, str(sa.inspect(Contract).local_table))


class RoutingSession(LockingSession):
    """A session that sends each question to the next of its engines."""

    engines: list[sa.Engine]

    def get_bind(self, *args: Any, **kwargs: Any) -> Any:
        self.engines.append(self.engines.pop(0))
        return self.engines[0]


@pytest.mark.databases("sqlite")
def test_a_session_that_routes_names_the_database_of_its_lock(
    engine: sa.Engine, reported: Recorded
) -> None:
    replica = sa.create_engine("sqlite:///nowhere.db")
    with RoutingSession() as session:
        session.engines = [replica, engine]
        session.get_one_entity(Order, 1, ForUpdate)
    (span,) = reported.spans
    assert database_of(span) == expected(engine, "lk_order")


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.parametrize("way", ["granted", "refused", "named", "set", "select"])
def test_telemetry_asks_a_session_that_routes_for_no_engine_of_its_own(
    other: Session, engine: sa.Engine, reported: Recorded, way: str
) -> None:
    def engines_asked_for() -> int:
        asked: list[object] = []

        class CountingSession(LockingSession):
            def get_bind(self, *args: Any, **kwargs: Any) -> Any:
                asked.append(args)
                return engine

        with CountingSession() as routed:
            if way == "granted":
                routed.get_one_entity(Order, 1, ForUpdate)
            elif way == "set":
                routed.get_entities(Order, [1, 2], ForUpdate)
            elif way == "select":
                routed.scalars(sa.select(Order).where(Order.id == 1).with_for_update()).one()
            elif way == "named":
                routed.lock_key("user:42", bind_arguments={"mapper": Order})
            else:
                other.get_one_entity(Order, 1, ForUpdate)
                with pytest.raises(LockNotAvailable):
                    routed.get_entity(Order, 1, ForUpdate | NoWait)
                other.rollback()
        return len(asked)

    with_telemetry = engines_asked_for()
    (span,) = reported.spans[:1]
    assert database_of(span)["db.system.name"] == expected(engine, None)["db.system.name"]
    uninstrument()
    assert engines_asked_for() == with_telemetry


@pytest.mark.databases("sqlite", "postgresql")
def test_the_schema_of_a_tenant(engine: sa.Engine, reported: Recorded) -> None:
    tenant = engine.execution_options(schema_translate_map={None: "main"})
    with LockingSession(tenant) as of_tenant, pytest.raises((NoResultFound, ProgrammingError)):
        of_tenant.get_one_entity(Order, -1, ForUpdate)
    assert database_of(reported.spans[0])["db.collection.name"] == "main.lk_order"


def held(reported: Recorded) -> dict[tuple[Any, ...], float]:
    return reported.sums("doclock.lock.held")


@pytest.mark.databases("sqlite", "postgresql")
def test_a_gauge_of_the_locks_held(session: Session, reported: Recorded) -> None:
    assert held(reported) == {}
    session.get_entities(Order, [1, 2], ForUpdate | NoWait)
    session.get_one_entity(Order, 1, ForUpdate)  # held already
    session.lock_key("a name")
    assert held(reported) == {("Order", "ForUpdate"): 2, ("key", "ForUpdate"): 1}
    session.commit()
    assert held(reported) == {("Order", "ForUpdate"): 0, ("key", "ForUpdate"): 0}


@pytest.mark.databases("sqlite", "postgresql")
def test_a_savepoint_gives_its_locks_up(session: Session, reported: Recorded) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    savepoint = session.begin_nested()
    session.get_one_entity(Order, 2, ForUpdate)
    assert held(reported) == {("Order", "ForUpdate"): 2}
    savepoint.rollback()
    # SQLite's lock is that of the file, which the savepoint does not give up
    assert held(reported)["Order", "ForUpdate"] == len(session.held_locks)


@pytest.mark.databases("sqlite")
def test_a_session_that_is_dropped_and_one_after_uninstrument(
    engine: sa.Engine, session: Session, reported: Recorded
) -> None:
    dropped = LockingSession(engine)
    dropped.get_one_entity(Order, 1, ForUpdate)
    assert held(reported) == {("Order", "ForUpdate"): 1}
    del dropped
    gc.collect()
    assert held(reported) == {("Order", "ForUpdate"): 0}
    session.get_one_entity(Order, 1, ForUpdate)
    uninstrument()
    assert held(reported) == {}
