"""An error of a statement, as an exploration notes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from sqlalchemy import Connection
from sqlalchemy.engine import ExceptionContext

from doclock_audit.exploration.listeners import Listeners
from sa_doclock.testing.scheduling.accesses import Access, Accesses, Mode, TransactionAccesses
from sa_doclock.testing.scheduling.participant import Participant, Step, current_participant

ROW = Access(Mode.LOCK, "orders", "1")
DRIVER, WRAPPED = ValueError("of the driver"), KeyError("of SQLAlchemy")


class Engines:
    """The facts of an engine, to which this error is a deadlock."""

    def is_deadlock(self, _connection: object, error: object) -> bool:
        return error is DRIVER


class Context:
    """The error as SQLAlchemy tells of it."""

    def __init__(self, *, connected: bool, wrapped: BaseException | None = WRAPPED) -> None:
        self.connection = cast("Connection", object()) if connected else None
        self.original_exception: BaseException = DRIVER
        self.sqlalchemy_exception = wrapped


@pytest.fixture
def participant() -> Iterator[Participant]:
    """Return a function in a transaction that has locked a row, in another step."""
    participant = Participant(1)
    participant.step = Step(1, "UPDATE orders", "", 7)
    transaction = participant.transactions[7] = TransactionAccesses(7)
    transaction.add(frozenset({ROW}))
    current_participant.set(participant)
    yield participant
    current_participant.set(None)


def on_error(context: Context) -> None:
    listeners = Listeners(cast("Any", Engines()), cast("Any", None))
    listeners._on_error(cast("ExceptionContext", context))


def ended(row: Access) -> Accesses:
    transaction = TransactionAccesses()
    transaction.add(frozenset({row}))
    return transaction.ended()


def test_an_error_ends_what_the_transaction_has_done(participant: Participant) -> None:
    on_error(Context(connected=True))
    step = participant.step
    assert step is not None
    assert (step.error, step.is_deadlock, step.accesses) == (WRAPPED, True, ended(ROW))
    # The locks may be gone: to lock the row again is a new access.
    assert participant.transactions[7].new(frozenset({ROW})) == {ROW}


def test_accesses_of_the_step_itself_stay(participant: Participant) -> None:
    other = Access(Mode.WRITE, "lines", "2")
    assert participant.step is not None
    participant.step.accesses = frozenset({other})
    on_error(Context(connected=True))
    assert participant.step.accesses == {other} | ended(ROW)


def test_an_error_without_a_connection_is_no_deadlock(participant: Participant) -> None:
    on_error(Context(connected=False, wrapped=None))
    assert participant.step is not None
    assert (participant.step.error, participant.step.is_deadlock) == (DRIVER, False)


def test_an_error_in_another_transaction_ends_nothing(participant: Participant) -> None:
    assert participant.step is not None
    participant.step.transaction = 8
    on_error(Context(connected=True))
    assert participant.step.accesses == frozenset()
    assert participant.transactions[7].new(frozenset({ROW})) == frozenset()


def test_an_error_of_nobody_and_of_a_function_without_a_step_is_let_alone(
    participant: Participant,
) -> None:
    participant.step = None
    on_error(Context(connected=True))
    current_participant.set(None)
    on_error(Context(connected=True))
    assert participant.transactions[7].new(frozenset({ROW})) == frozenset()
