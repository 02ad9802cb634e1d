"""The logger ``sa_doclock``: one record for each lock, with fields for machines."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

import sa_doclock.core.instrumentation
from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.locking.steps import cross, locks, set_total
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Customer, Line, Order, Voucher
from tests.support.waits import wait_until_blocked

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait
Session = LockingSession
FIELDS = ("document", "lock", "outcome")
TIMES = ("waited", "held")


@pytest.fixture
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "sa_doclock")


def records(caplog: pytest.LogCaptureFixture) -> list[tuple[int, tuple[Any, ...]]]:
    """Return level and fields of the log records, without durations."""
    return [
        (record.levelno, tuple(getattr(record, field) for field in FIELDS))
        for record in caplog.records
        if record.name == "sa_doclock"
    ]


def times(caplog: pytest.LogCaptureFixture) -> list[tuple[bool, bool]]:
    """Return for each record whether it has the seconds waited, and the seconds held."""
    return [
        tuple(getattr(record, field) is not None and getattr(record, field) > 0 for field in TIMES)  # type: ignore[misc]
        for record in caplog.records
        if record.name == "sa_doclock"
    ]


@pytest.mark.read_committed
@pytest.mark.usefixtures("all_levels")
def test_a_lock_and_its_end(
    session: Session, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sa_doclock.core.instrumentation, "CONTENDED", math.inf
    )  # however slow the machine
    session.get_one_entity(Order, 1, ForUpdate)
    session.commit()
    session.get_one_entity(Voucher, (2024, 1), ForUpdate | NoWait)
    session.rollback()
    voucher = "Voucher (2024, 1)"
    assert records(caplog) == [
        (logging.DEBUG, ("Order 1", "FOR UPDATE", "granted")),
        (logging.DEBUG, ("Order 1", "FOR UPDATE", "committed")),
        (logging.DEBUG, (voucher, "FOR UPDATE NOWAIT", "granted")),
        (logging.DEBUG, (voucher, "FOR UPDATE", "rolled back")),
    ]
    assert times(caplog) == [(True, False), (False, True)] * 2
    assert caplog.messages[0].startswith("Order 1 FOR UPDATE: granted after 0.")
    assert caplog.messages[1].startswith("Order 1 FOR UPDATE: committed after 0.")


@pytest.mark.read_committed
@pytest.mark.usefixtures("all_levels")
def test_one_that_was_waited_for(
    alice: Actor[Session], bob: Actor[Session], caplog: pytest.LogCaptureFixture
) -> None:
    alice.does(locks(Order, 1))
    queued = bob.starts(locks(Order, 1))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sa_doclock.core.instrumentation, "CONTENDED", 1e-6)
        alice.does(lambda session: session.rollback())
        queued.result()
    granted = (logging.INFO, ("Order 1", "FOR UPDATE", "granted"))
    assert granted in records(caplog)


@pytest.mark.read_committed
@pytest.mark.usefixtures("all_levels")
def test_only_contended_ones_where_debugging_is_off(
    session: Session, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "sa_doclock")
    monkeypatch.setattr(
        sa_doclock.core.instrumentation, "CONTENDED", math.inf
    )  # however slow the machine
    session.get_one_entity(Order, 1, ForUpdate)
    session.rollback()
    monkeypatch.setattr(sa_doclock.core.instrumentation, "CONTENDED", 0)
    session.get_one_entity(Order, 2, ForUpdate)
    session.rollback()
    assert records(caplog) == [(logging.INFO, ("Order 2", "FOR UPDATE", "granted"))]


@pytest.mark.read_committed
@pytest.mark.usefixtures("all_levels")
def test_a_time_out(
    session: Session,
    other: Session,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    caplog.clear()
    monkeypatch.setattr(sa_doclock.core.instrumentation, "SHORT_LIMIT", 0.1)
    for how in ({"lock_timeout": 0.15}, {"lock_timeout": 0.05}, {"lock_timeout": 0}):
        with pytest.raises(LockNotAvailable) as caught:
            session.get_entity(Order, 1, ForUpdate, **how)
        assert caplog.messages[-1] == caught.value.args[0]
    with pytest.raises(LockNotAvailable):
        session.scalars(session.entity_set(Order, ForUpdate | NoWait)).all()
    assert records(caplog) == [
        (logging.WARNING, ("Order 1", "FOR UPDATE", "not available")),  # longer than a try
        (logging.INFO, ("Order 1", "FOR UPDATE", "not available")),
        (logging.INFO, ("Order 1", "FOR UPDATE NOWAIT", "not available")),
        (logging.INFO, ("Order rows", "FOR UPDATE NOWAIT", "not available")),
    ]
    assert times(caplog) == [(True, False)] * 4


_LIMIT_OF_THE_SERVER = {
    "postgresql": "SET lock_timeout = '50ms'",
    "mysql": "SET SESSION innodb_lock_wait_timeout = 1",
    "mariadb": "SET SESSION innodb_lock_wait_timeout = 1",
    "sqlite": "PRAGMA busy_timeout = 50",
}


@pytest.mark.read_committed
@pytest.mark.usefixtures("all_levels")
def test_a_wait_past_the_servers_own_limit(
    database: Database,
    engine: sa.Engine,
    session: Session,
    other: Session,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    caplog.clear()

    def limit(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        cursor.execute(_LIMIT_OF_THE_SERVER[database.name])
        cursor.close()
        connection.commit()

    sa.event.listen(engine, "connect", limit)
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate)
    assert records(caplog)[-1] == (logging.WARNING, ("Order 1", "FOR UPDATE", "not available"))


@pytest.mark.read_committed
@pytest.mark.usefixtures("all_levels")
def test_an_order_violation(engine: sa.Engine, caplog: pytest.LogCaptureFixture) -> None:
    with Session(engine, lock_order=(Order, Voucher)) as session:
        session.get_one_entity(Voucher, (2024, 1), ForUpdate)
        caplog.clear()
        with pytest.raises(sa_doclock.LockOrderViolation) as caught:
            session.get_entity(Order, 1, ForUpdate)
        assert records(caplog) == [(logging.WARNING, ("Order 1", "FOR UPDATE", "order violation"))]
        assert caplog.messages == [caught.value.args[0]]


@pytest.mark.read_committed
@pytest.mark.usefixtures("all_levels")
def test_a_misuse_is_none(session: Session, caplog: pytest.LogCaptureFixture) -> None:
    session.get_one(Order, 1).total = 31
    with pytest.raises(sa_doclock.UnsavedChanges):
        session.get_entity(Order, 1, ForUpdate)
    assert records(caplog) == []


@pytest.mark.read_committed
@pytest.mark.usefixtures("all_levels")
@pytest.mark.not_databases("sqlite")  # there is one lock per file
def test_a_deadlock(
    alice: Actor[Session], bob: Actor[Session], caplog: pytest.LogCaptureFixture
) -> None:
    alice.does(set_total(1, 31))
    bob.does(set_total(2, 6))
    loser, failure, winner, step = cross(alice, bob, lambda ident: locks(Order, ident))
    step.result()
    (warning,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    wanted = 2 if loser is alice else 1
    assert (warning.document, warning.lock) == (f"Order {wanted}", "FOR UPDATE")  # type: ignore[attr-defined]
    assert warning.outcome == "deadlock"  # type: ignore[attr-defined]
    assert warning.waited > 0  # type: ignore[attr-defined]
    assert warning.getMessage() == failure.args[0]
    winner.does(lambda session: session.rollback())
    loser.does(lambda session: session.rollback())


def write_line(ident: int) -> Callable[[Session], None]:
    def step(session: Session) -> None:
        session.execute(sa.update(Line).where(Line.id == ident).values(value=99))

    return step


def flush_name(ident: int) -> Callable[[Session], None]:
    def step(session: Session) -> None:
        session.get_one(Customer, ident).name = "changed"
        session.flush()

    return step


def commit_name(ident: int) -> Callable[[Session], None]:
    def step(session: Session) -> None:
        session.get_one(Customer, ident).name = "changed"
        session.commit()

    return step


@pytest.mark.read_committed
@pytest.mark.usefixtures("all_levels")
@pytest.mark.not_databases("sqlite")
@pytest.mark.parametrize("step", [flush_name, commit_name])
def test_a_deadlock_of_writes(
    alice: Actor[Session],
    bob: Actor[Session],
    caplog: pytest.LogCaptureFixture,
    step: Callable[[int], Callable[[Session], None]],
) -> None:
    alice.does(locks(Order, 1))
    bob.does(locks(Order, 2))
    alice.does(flush_name(1))
    bob.does(flush_name(2))
    caplog.clear()
    loser, _, winner, other = cross(alice, bob, step)
    other.result()
    (warning,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    held = "Order 1" if loser is alice else "Order 2"
    fields = tuple(getattr(warning, field) for field in (*FIELDS, *TIMES))
    assert fields == (held, None, "deadlock", None, None)
    for actor in (loser, winner):
        actor.does(lambda session: session.rollback())


@pytest.mark.read_committed
@pytest.mark.usefixtures("all_levels")
@pytest.mark.databases("mariadb", "postgresql")
def test_a_snapshot_conflict(
    database: Database,
    make_session: Callable[..., Session],
    other: Session,
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = make_session(isolation_level="REPEATABLE READ")
    if database.name == "mariadb":
        session.connection().exec_driver_sql("SET SESSION innodb_snapshot_isolation = ON")
        session.rollback()
    assert session.get_one(Customer, 1).name == "Ann"
    flush_name(1)(other)
    other.commit()
    with pytest.raises(sa_doclock.SnapshotConflict):
        session.execute(sa.update(Customer).where(Customer.id == 1).values(name="Bea"))
    assert records(caplog) == [(logging.WARNING, (None, None, "snapshot conflict"))]
    session.rollback()


@pytest.mark.read_committed
@pytest.mark.usefixtures("all_levels")
def test_a_level_of_its_own_counts(session: Session, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "sa_doclock")
    session.get_one_entity(Order, 1, ForUpdate)
    session.rollback()
    assert records(caplog) == []


# --------------------------------------------------------------------------------------------------
# Without listeners, the session does not build event data.


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the reports that are put together."""
    noted: list[str] = []

    def noting(target: Any, name: str) -> None:
        original = getattr(target, name)

        def note(*args: Any, **how: Any) -> Any:
            noted.append(name)
            return original(*args, **how)

        monkeypatch.setattr(target, name, note)

    noting(sa_doclock.core.instrumentation, "_label_of")
    noting(sa_doclock.core.instrumentation, "_fields")
    return noted


def use(session: Session, other: Session, lock_timeout: float = 0.05) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable):
        other.get_entity(Order, 1, ForUpdate, lock_timeout=lock_timeout)
    session.commit()


@pytest.mark.databases("sqlite")
def test_nothing_is_asked_for_in_silence(
    session: Session, other: Session, asked: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "sa_doclock")
    use(session, other)
    assert asked == []


@pytest.mark.databases("sqlite")
def test_by_default_only_what_failed_is_logged(
    session: Session, other: Session, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sa_doclock.core.instrumentation, "SHORT_LIMIT", 0.01)
    use(session, other)
    assert asked == ["_fields"]


@pytest.mark.databases("sqlite")
def test_a_try_that_does_not_wait_is_not_logged_by_default(
    session: Session, other: Session, asked: list[str]
) -> None:
    use(session, other, lock_timeout=0)
    assert asked == []


@pytest.mark.databases("sqlite")
def test_somebody_who_reads_the_log_learns_of_it(
    session: Session, other: Session, asked: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "sa_doclock")
    use(session, other)
    assert {"_label_of", "_fields"} <= set(asked)
