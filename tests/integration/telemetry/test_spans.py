"""A span for each lock: its name, attributes, parent and children."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy.exc import NoResultFound, ProgrammingError
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockNotAvailable, LockOptions, WrongIsolation, claim_each
from sa_doclock.opentelemetry import uninstrument
from tests.integration.locking.steps import cross, locks, set_total
from tests.integration.telemetry.conftest import Instrument, Recorded
from tests.support.actors import Actor
from tests.support.models import Contract, Lease, Order, Voucher

pytestmark = pytest.mark.read_committed

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait
Session = LockingSession


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Return our attributes without the time, which is present and at most the span's duration."""
    given = span.attributes or {}
    found = {
        name: value for name, value in given.items() if name.startswith(("doclock.", "error."))
    }
    waited: Any = found.pop("doclock.waited")
    assert span.start_time is not None
    assert span.end_time is not None
    assert 0 < waited <= (span.end_time - span.start_time) / 1e9 + 1
    return found


def only(reported: Recorded) -> ReadableSpan:
    (span,) = reported.spans
    return span


@contextmanager
def statement_spans(engine: sa.Engine, reported: Recorded) -> Iterator[None]:
    """Make a span for each statement, like SQLAlchemy's instrumentation."""
    tracer = reported.tracers.get_tracer("statements")

    def before(*_: object) -> None:
        tracer.start_span("statement").end()

    sa.event.listen(engine, "before_cursor_execute", before)
    yield
    sa.event.remove(engine, "before_cursor_execute", before)


@pytest.mark.databases("sqlite", "postgresql")
def test_a_lock_that_is_granted(session: Session, reported: Recorded) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    span = only(reported)
    assert span.name == "lock Order"
    assert attributes(span) == {
        "doclock.entity": "Order",
        "doclock.lock": "ForUpdate",
        "doclock.outcome": "granted",
        "doclock.documents": 1,
    }
    assert span.status.status_code is StatusCode.UNSET
    assert span.parent is None
    session.get_one_entity(Order, 1, ForUpdate)  # held already
    session.get_entity(Order, 2)  # no lock
    assert len(reported.spans) == 1


@pytest.mark.databases("sqlite", "postgresql")
def test_its_statements_are_its_children(
    session: Session, engine: sa.Engine, reported: Recorded
) -> None:
    tracer = reported.tracers.get_tracer("the program")
    with tracer.start_as_current_span("request"), statement_spans(engine, reported):
        session.get_one_entity(Order, 1, ForUpdate)
        session.scalar(sa.select(sa.literal(1)))
    *inside, lock, after, request = reported.spans
    assert (lock.name, request.name) == ("lock Order", "request")
    assert inside
    assert {one.name for one in (*inside, after)} == {"statement"}
    assert lock.context is not None
    assert request.context is not None
    assert {one.parent and one.parent.span_id for one in inside} == {lock.context.span_id}
    for one in (lock, after):
        assert one.parent is not None
        assert one.parent.span_id == request.context.span_id


@pytest.mark.databases("sqlite", "postgresql")
def test_one_that_is_not_available(session: Session, other: Session, reported: Recorded) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    reported.clear()
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate | NoWait)
    span = only(reported)
    assert attributes(span) == {
        "doclock.entity": "Order",
        "doclock.lock": "ForUpdate|NoWait",
        "doclock.outcome": "not_available",
        "doclock.documents": 0,
        "error.type": "LockNotAvailable",
    }
    assert span.status.status_code is StatusCode.UNSET  # a try


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.not_databases("sqlite")
def test_a_deadlock(alice: Actor[Session], bob: Actor[Session], reported: Recorded) -> None:
    alice.does(set_total(1, 31))
    bob.does(set_total(2, 6))
    reported.clear()
    loser, _, winner, step = cross(alice, bob, lambda ident: locks(Order, ident))
    step.result()
    for actor in (loser, winner):
        actor.does(lambda session: session.rollback())
    outcomes = {(span.attributes or {})["doclock.outcome"]: span for span in reported.spans}
    assert outcomes.keys() == {"granted", "deadlock"}
    assert outcomes["deadlock"].status.status_code is StatusCode.ERROR
    assert outcomes["deadlock"].status.description == "DeadlockDetected"
    assert not outcomes["deadlock"].events  # an exception's text contains the key


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.not_databases("sqlite")
def test_an_error_of_the_program(make_session: Callable[..., Session], reported: Recorded) -> None:
    session = make_session(isolation_level="SERIALIZABLE")
    session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
    session.scalar(sa.text("SELECT 1"))
    with pytest.raises(WrongIsolation):
        session.get_entity(Order, 1, ForUpdate)
    assert attributes(only(reported))["doclock.outcome"] == "wrong_isolation"


@pytest.mark.databases("sqlite", "postgresql")
def test_many_and_sets_and_with_for_update(session: Session, reported: Recorded) -> None:
    session.get_entities(Order, [1, 2, 99], ForUpdate)
    session.rollback()
    session.scalars(session.entity_set(Order, ForUpdate)).all()
    session.rollback()
    session.scalars(sa.select(Order).with_for_update()).all()
    session.rollback()
    assert session.get_entity(Order, 99, ForUpdate) is None
    found = [attributes(span) for span in reported.spans]
    assert [one["doclock.documents"] for one in found] == [2, 2, 2, 0]
    assert {one["doclock.entity"] for one in found} == {"Order"}
    assert {one["doclock.outcome"] for one in found} == {"granted"}


@pytest.mark.databases("sqlite", "postgresql")
def test_a_with_for_update_that_fails(
    session: Session, other: Session, engine: sa.Engine, reported: Recorded
) -> None:
    if engine.dialect.name == "sqlite":
        other.connection()
    other.get_one_entity(Order, 1, ForUpdate)
    reported.clear()
    with pytest.raises(LockNotAvailable):
        session.scalars(sa.select(Order).with_for_update(nowait=True)).all()
    assert attributes(only(reported))["doclock.outcome"] == "not_available"
    assert reported.sums("doclock.lock.outcomes")["Order", "ForUpdate|NoWait", "not_available"] == 1


@pytest.mark.databases("sqlite", "postgresql")
def test_a_named_lock(session: Session, reported: Recorded) -> None:
    session.lock_key("user:42")
    span = only(reported)
    assert span.name == "lock key"
    assert attributes(span)["doclock.entity"] == "key"


@pytest.mark.databases("sqlite", "postgresql")
def test_claims(session_factory: sessionmaker[Session], reported: Recorded) -> None:
    for claim in claim_each(session_factory, sa.select(Order)):
        with claim as order:
            order.total += 1
    assert [span.name for span in reported.spans] == ["lock Order"] * len(reported.spans)
    assert sum(attributes(span)["doclock.documents"] for span in reported.spans) == 2


def everything(session: Session) -> None:
    session.get_one_entity(Voucher, (2024, 1), ForUpdate)
    session.rollback()
    session.get_entities(Order, [1, 2], ForUpdate)
    session.rollback()
    session.lock_key("user:42")
    session.rollback()


@pytest.mark.databases("sqlite", "postgresql")
def test_no_key_is_shown(session: Session, reported: Recorded) -> None:
    everything(session)
    text = " ".join(span.to_json() for span in reported.spans)
    # As a separate number: a time or a span's id may contain the digits by chance.
    assert not re.search(r"(?<![\w.-])2024(?![\w.-])", text)
    assert "user:42" not in text
    assert "doclock.key" not in text
    for name in reported.units():
        for point in reported.points(name):
            assert "doclock.key" not in point.attributes


@pytest.mark.databases("sqlite", "postgresql")
def test_keys_are_shown_where_they_are_asked_for(
    session: Session, instrumented: Instrument
) -> None:
    reported = instrumented(keys=True)
    everything(session)
    voucher, orders, name = (attributes(span) for span in reported.spans)
    assert voucher["doclock.key"] == "(2024, 1)"
    assert orders["doclock.keys"] == ("1", "2")
    assert name["doclock.key"] == "'user:42'"
    held = {point.attributes["doclock.key"] for point in reported.points("doclock.lock.hold")}
    assert held == {"(2024, 1)", "1", "2", "'user:42'"}


@pytest.mark.databases("sqlite", "postgresql")
def test_a_call_in_which_the_program_clears_the_info_of_its_session(
    session: Session, reported: Recorded
) -> None:
    def clear(*_: object) -> None:
        assert session.info == {}
        session.info.clear()

    sa.event.listen(session, "before_lock", clear)
    session.get_one_entity(Order, 1, ForUpdate)
    assert only(reported).name == "lock Order"


# --------------------------------------------------------------------------------------------------
# OpenTelemetry's database conventions: span attributes, span kind, a gauge of held locks.

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
    """A session that sends each query to the next of its engines."""

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
    # SQLite's lock is the file's, which the savepoint does not release
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
