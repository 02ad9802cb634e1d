"""gate.run() in pipelined sessions: whose error is whose, and what a function costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import sessionmaker

from sa_doclock import DocumentGate, LockingSession, LockOptions
from tests.integration.gate.queueing import wait_until_queued
from tests.integration.pipeline.models import Bill, Item, Note
from tests.integration.pipeline.only import ON_POSTGRESQL
from tests.integration.timeouts.wire import Wire
from tests.support.actors import PATIENCE
from tests.support.databases import Database
from tests.support.poolers import COUNTS_ROUND_TRIPS

pytestmark = [*ON_POSTGRESQL, COUNTS_ROUND_TRIPS]

Function = Callable[[LockingSession, Bill], int]
Outcome = int | BaseException
Together = Callable[..., list[Outcome]]


@pytest.fixture
def together(bills: Database, engine: sa.Engine) -> Iterator[Together]:
    """Return what runs functions in one commit, and returns the results or errors."""
    holder = LockingSession(bills.engine())
    with ThreadPoolExecutor(8) as threads, holder:

        def run(*functions: Function, pipeline: bool = True) -> list[Outcome]:
            gate, calls = DocumentGate(), list[Future[int]]()
            sessions: Any = sessionmaker(engine, class_=LockingSession, pipeline=pipeline)
            kept = holder.get_one_entity(Bill, 1, LockOptions.ForUpdate)
            for number, function in enumerate(functions, start=1):
                calls.append(threads.submit(gate.run, sessions, Bill, 1, function))
                wait_until_queued(gate, number=number)
            holder.rollback()
            del kept
            return [call.exception(PATIENCE) or call.result() for call in calls]

        yield run


def add(number: int) -> Function:
    def function(_session: LockingSession, bill: Bill) -> int:
        bill.total += number
        return bill.total

    return function


def refused_by_the_server(session: LockingSession, bill: Bill) -> int:
    bill.total += 1000
    session.get_one(Note, 1).number = 100  # against its CHECK
    return bill.total


def fail(_session: LockingSession, bill: Bill) -> int:
    bill.total += 1000
    bill.items[0].value = 0
    raise ZeroDivisionError


def new_item(_session: LockingSession, bill: Bill) -> int:
    bill.items.append(Item(name="c", value=3))
    return len(bill.items)


def look(session: LockingSession, bill: Bill) -> int:
    session.flush()
    return sum(item.value for item in bill.items)


@pytest.mark.parametrize("pipeline", [True, False])
def test_what_the_server_refuses_is_the_error_of_its_function(
    together: Together, elsewhere: sa.Engine, pipeline: bool
) -> None:
    functions = [add(1), refused_by_the_server, add(2), fail, new_item, look]
    outcomes = together(*functions, pipeline=pipeline)
    assert isinstance(outcomes[1], IntegrityError)
    assert isinstance(outcomes[3], ZeroDivisionError)
    assert [outcomes[n] for n in (0, 2, 4, 5)] == [31, 33, 3, 33]
    with elsewhere.connect() as connection:
        bill = connection.execute(sa.select(Bill.total, Bill.version).where(Bill.id == 1)).one()
        assert tuple(bill) == (33, 3)
        assert connection.scalars(sa.select(Note.number).where(Note.id == 1)).one() == 1
        assert sum(connection.scalars(sa.select(Item.value))) == 33


def test_what_is_deferred_to_the_commit_is_everybodys(
    together: Together, elsewhere: sa.Engine
) -> None:
    def to_no_bill(session: LockingSession, _bill: Bill) -> int:
        session.execute(sa.update(Item).where(Item.id == -1).values(bill_id=99))
        return 0

    errors = together(add(1), to_no_bill, add(2))
    assert isinstance(errors[0], IntegrityError)
    assert [error is errors[0] for error in errors] == [True] * 3
    with elsewhere.connect() as connection:
        assert connection.scalars(sa.select(Bill.total).where(Bill.id == 1)).one() == 30


def trips(wire: Wire, together: Together, *functions: Function, pipeline: bool) -> int:
    with wire.counting() as counted:
        outcomes = together(*functions, pipeline=pipeline)
    assert all(isinstance(one, int) for one in outcomes)
    return counted[0]


def test_all_functions_together_cost_as_many_round_trips_as_one(
    wire: Wire, together: Together
) -> None:
    assert trips(wire, together, add(1), pipeline=True) == 2
    assert trips(wire, together, *[add(1)] * 7, pipeline=True) == 2
    assert trips(wire, together, *[add(1)] * 7, pipeline=False) > 2
