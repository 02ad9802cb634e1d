"""A ForUpdate lock of a class with checkout=True sends one statement more; no other lock does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import CheckedOut, Checkout, LockingSession, LockNotSupported, LockOptions
from sa_doclock.dialects.sqlite import SQLiteLocks
from sa_doclock.opentelemetry import instrument, uninstrument
from tests.integration.checkouts.models import CHECKOUTS, Memo, Order
from tests.integration.telemetry.conftest import Recorded

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead

#: Each lock, with the number of statements that check-outs add.
LOCKS: dict[str, tuple[Callable[[LockingSession], Any], int]] = {
    "by key": (lambda s: s.get_entity(Order, 1, ForUpdate), 1),
    "with parts": (lambda s: s.get_document(Order, 1, ForUpdate), 1),
    "many": (lambda s: s.get_entities(Order, [1, 2, 3], ForUpdate), 1),
    "select": (lambda s: s.scalars(s.entity_set(Order, ForUpdate)).all(), 1),
    "adopted": (lambda s: s.scalars(sa.select(Order).with_for_update()).all(), 1),
    "again": (lambda s: [s.get_entity(Order, 1, ForUpdate) for _ in range(3)], 1),
    "another class": (lambda s: s.get_entity(Memo, 1, ForUpdate), 0),
    "a read lock": (lambda s: s.get_entity(Order, 1, SharedRead), 0),
    "no lock": (lambda s: s.get_entity(Order, 1), 0),
    "a named lock": (lambda s: s.lock_key("co"), 0),
}


def sent(engine: sa.Engine, do: Callable[[], object]) -> list[str]:
    """Return the statements that this call sends."""
    statements: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    do()
    sa.event.remove(engine, "before_cursor_execute", note)
    return statements


@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.parametrize("what", LOCKS)
def test_the_number_of_statements(
    engine: sa.Engine, factory: sessionmaker[LockingSession], what: str
) -> None:
    lock, more = LOCKS[what]
    counts = []
    for make in (sessionmaker(engine, class_=LockingSession), factory):
        with make() as session:
            lock(session)  # the engine's first queries
            session.rollback()
            session.expunge_all()
            counts.append(len(sent(engine, partial(lock, session))))
    assert counts[1] - counts[0] == more


@pytest.mark.not_databases("sqlite-journal")
def test_the_statements_of_each_change(
    engine: sa.Engine, factory: sessionmaker[LockingSession]
) -> None:
    def ours(do: Callable[[], object]) -> list[str]:
        return [one.split()[0] for one in sent(engine, do) if "co_checkouts" in one]

    with factory() as session:
        assert ours(lambda: session.check_out(Order, 1, "ann")) == ["SELECT", "INSERT"]
        session.commit()
        assert ours(lambda: session.check_out(Order, 1, "ann")) == ["SELECT", "UPDATE"]
        session.commit()
        found = session.checkout_of(Order, 1)
        assert found is not None
        assert ours(lambda: session.renew(found)) == ["UPDATE", "SELECT", "UPDATE"]
        assert ours(lambda: session.check_in(found)) == ["UPDATE"]


@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite")
def test_listeners_and_the_log_are_notified(
    session: LockingSession, caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[tuple[str, int]] = []

    def note(_session: object, checkout: Checkout, change: str) -> None:
        reported.append((change, checkout.epoch))

    sa.event.listen(session, "checkout_changed", note)
    with caplog.at_level(logging.INFO, "sa_doclock"):
        session.check_out(Order, 1, "ann")
        mine = session.check_out(Order, 1, "ann")
        theirs = session.take_over(Order, 1, "bob")
        session.check_in(session.renew(theirs))
        session.take_over(Order, 1, "cat")  # not checked out
    assert reported == [
        ("checked out", 1),
        ("renewed", 1),
        ("taken over", 2),
        ("renewed", 2),
        ("checked in", 2),
        ("checked out", 3),
    ]
    assert mine.epoch == 1
    (record,) = (one for one in caplog.records if "taken over" in one.getMessage())
    assert record.getMessage() == "Order 1: taken over, epoch 2, by 'bob'"


@pytest.mark.not_databases("sqlite-journal")
def test_the_table_of_another_session_is_refused() -> None:
    with pytest.raises(TypeError, match="made by checkout_table"):
        LockingSession(checkouts=cast("sa.Table", Order.__table__))
    assert LockingSession(checkouts=CHECKOUTS) is not None


@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite")
def test_a_renewal_goes_to_the_primary(engine: sa.Engine, tmp_path: Path) -> None:
    replica = sa.create_engine(f"sqlite:///{tmp_path / 'replica.db'}")  # without any table

    class Routing(LockingSession):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **_: Any) -> Any:
            writes = self._flushing or getattr(clause, "is_dml", False)
            locks = getattr(clause, "_for_update_arg", None) is not None
            return engine if writes or locks or clause is None else replica

    with sessionmaker(engine, class_=LockingSession, checkouts=CHECKOUTS)() as session:
        mine = session.check_out(Order, 1, "ann")
        session.commit()
    with Routing(checkouts=CHECKOUTS) as session:
        mine = session.renew(mine)
        session.commit()
        session.check_in(mine)
        session.commit()
    replica.dispose()


@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite")
def test_a_database_without_a_clock(
    session: LockingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SQLiteLocks, "clock", None)
    with pytest.raises(LockNotSupported, match="give its LockStrategy a ServerClock"):
        session.check_out(Order, 1, "ann")
    assert not session.held_locks


@pytest.mark.not_databases("sqlite-journal")
def test_many_at_once(factory: sessionmaker[LockingSession], engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.insert(Order), [{"id": n, "total": 0} for n in range(10, 700)])
    with factory() as session:
        session.check_out(Order, 650, "ann")
        session.commit()
        with pytest.raises(CheckedOut) as caught:
            session.get_entities(Order, range(1, 700), ForUpdate)
        assert caught.value.ident == 650
        session.rollback()
        assert len(session.get_entities(Order, range(1, 600), ForUpdate)) > 500


# --------------------------------------------------------------------------------------------------
# Check-outs in OpenTelemetry: a lock span, and an event on the program's span.


@pytest.mark.databases("sqlite")
def test_a_change_is_an_event_of_the_span_that_is_open(session: LockingSession) -> None:
    reported = Recorded()
    instrument(tracer_provider=reported.tracers, meter_provider=reported.meters)
    try:
        tracer = reported.tracers.get_tracer("the program")
        with tracer.start_as_current_span("request"):
            session.check_in(session.check_out(Order, 1, "ann"))
            session.commit()
    finally:
        uninstrument()
    lock, request = reported.spans
    assert (lock.name, request.name) == ("lock Order", "request")
    assert [event.name for event in request.events] == ["checked out Order", "checked in Order"]
    assert dict(request.events[0].attributes or {}) == {
        "doclock.entity": "Order",
        "doclock.change": "checked_out",
    }
