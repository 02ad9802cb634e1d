"""The log has each attempt that failed, with its document."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import DeadlockDetected, LockingSession, LockNotAvailable, run_transaction
from sa_doclock import LockOptions as Lock
from tests.integration.retry.counting import Counted, Session, deadlocks
from tests.support.models import Order, Voucher

factory = sessionmaker(class_=LockingSession)
FIELDS = ("document", "lock", "waited", "held", "outcome", "attempt", "attempts")


LEVELS = {"retried": logging.INFO, "given up": logging.WARNING}


@pytest.fixture(autouse=True)
def from_info_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sa_doclock")


def records_of(caplog: pytest.LogCaptureFixture) -> list[tuple[Any, ...]]:
    of_retries = [record for record in caplog.records if hasattr(record, "attempt")]
    for record in of_retries:
        level = LEVELS[vars(record)["outcome"]]
        assert (record.name, record.levelno) == ("sa_doclock", level)
    return [tuple(vars(record)[name] for name in FIELDS) for record in of_retries]


def test_every_attempt_that_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    one = DeadlockDetected("no", entity=Order, ident=42, lock=Lock.ForUpdate | Lock.NoWait)
    two = DeadlockDetected("no", entity=Voucher, ident=(2024, 1))
    run_transaction(factory, Counted(one, two, *deadlocks(1)))
    assert records_of(caplog) == [
        ("Order 42", "FOR UPDATE NOWAIT", None, None, "retried", 1, 5),
        ("Voucher (2024, 1)", None, None, None, "retried", 2, 5),
        (None, None, None, None, "retried", 3, 5),
    ]
    first = caplog.messages[0]
    assert first.startswith("run_transaction: attempt 1 of 5 failed, the next in 0.0")
    assert first.endswith(" s: no")


def test_the_one_after_which_it_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DeadlockDetected):
        run_transaction(factory, Counted(*deadlocks(2)), attempts=2)
    assert [one[4:] for one in records_of(caplog)] == [("retried", 1, 2), ("given up", 2, 2)]
    assert caplog.messages[1] == "run_transaction: given up after 2 attempts: made up, 1"


def test_nothing_where_nothing_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    run_transaction(factory, Counted())
    for error in (LookupError("no"), LockNotAvailable("held")):
        with pytest.raises(type(error)):
            run_transaction(factory, Counted(error))
    assert caplog.records == []


@pytest.mark.read_committed
@pytest.mark.databases("postgresql")
def test_the_document_of_a_real_lock(
    session_factory: Callable[[], Session], other: Session, caplog: pytest.LogCaptureFixture
) -> None:
    def lock(session: Session) -> None:
        if fn.runs == 2:
            other.rollback()
        session.get_entity(Order, 1, Lock.ForUpdate, lock_timeout=0)

    other.execute(sa.update(Order).values(total=0))
    fn = Counted(act=lock)
    run_transaction(session_factory, fn, retry_not_available=True)
    ((document, lock_taken, waited, held, outcome, *_),) = records_of(caplog)
    assert (document, lock_taken, held, outcome) == (
        "Order 1",
        "FOR UPDATE NOWAIT",
        None,
        "retried",
    )
    assert waited > 0
