"""Statements that travel together; docs/postgresql.md has these figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from psycopg.pq import PipelineStatus, TransactionStatus
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import sessionmaker

from sa_doclock import DocumentGate, LockingSession, LockOptions
from sa_doclock.dialects.postgresql.pipeline import send_in_pipeline
from tests.integration.gate.queueing import wait_until_queued
from tests.integration.pipeline.conftest import Sessions
from tests.integration.pipeline.models import ON_POSTGRESQL, Bill, Item, Note
from tests.integration.timeouts.ways import Wire
from tests.support.actors import PATIENCE
from tests.support.databases import Database
from tests.support.poolers import COUNTS_ROUND_TRIPS

pytestmark = [*ON_POSTGRESQL, COUNTS_ROUND_TRIPS]

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
Action = Callable[[Session], Any]


def trips(wire: Wire, session: Session, action: Action) -> int:
    with wire.counting() as counted:
        kept = action(session)
    del kept
    return counted[0]


def lock(session: Session) -> Bill:
    return session.get_one_entity(Bill, 1, ForUpdate)


def lock_and_details(session: Session) -> Any:
    bill = lock(session)
    return bill, [item.value for item in bill.items]


def document(session: Session) -> Any:
    bill = session.get_document(Bill, 1, ForUpdate)
    assert bill is not None
    return bill, [item.value for item in bill.items]


def change(read: Action) -> Action:
    def update(session: Session) -> None:
        bill, _ = read(session)
        bill.total += 1
        for item in bill.items:
            item.value += 1
        session.save_changes()

    return update


def load(read: Action) -> Action:
    def look(session: Session) -> None:
        read(session)
        session.release_locks()

    return look


#: By name: the action, with its round trips without and with a pipeline.
TABLE: dict[str, tuple[Action, int, int]] = {
    "get_entity, details, save_changes": (change(lock_and_details), 6, 3),
    "get_entity, details, release_locks": (load(lock_and_details), 4, 3),
    "get_document, save_changes": (change(document), 6, 2),
    "get_document, release_locks": (load(document), 4, 2),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_table(wire: Wire, make: Sessions, name: str) -> None:
    action, one_by_one, together = TABLE[name]
    assert trips(wire, make(pipeline=False), action) == one_by_one
    assert trips(wire, make(), action) == together


def test_the_page_has_the_same_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "postgresql.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| (get_\w+, [\w, ]+) \| (\d) \| (\d) \|$", page, re.MULTILINE)
    reported = {name: (int(one_by_one), int(together)) for name, one_by_one, together in found}
    assert reported == {name: row[1:] for name, row in TABLE.items()}


def test_begin_travels_with_the_lock(wire: Wire, session: Session) -> None:
    # Also tests that psycopg's one undocumented behaviour is unchanged.
    assert trips(wire, session, lock) == 1


def test_a_limit_costs_none(wire: Wire, session: Session) -> None:
    limited = session.get_one_entity
    assert trips(wire, session, lambda _: limited(Bill, 1, ForUpdate, lock_timeout=29.5)) == 1
    key = "a name"
    session.rollback()
    assert trips(wire, session, lambda session: session.lock_key(key, lock_timeout=29.5)) == 1


def test_the_lock_is_held_for_one_trip_only(wire: Wire, session: Session) -> None:
    bill, _ = document(session)
    bill.total += 1
    assert trips(wire, session, lambda session: session.save_changes()) == 1


def test_commit_and_a_block_do_as_save_changes(wire: Wire, make: Sessions) -> None:
    def commit(session: Session) -> None:
        document(session)[0].total += 1
        session.commit()

    def block(session: Session) -> None:
        with session.begin():
            document(session)[0].total += 1

    def locked(session: Session) -> None:
        with session.locked(Bill, 1) as bill:
            bill.total += 1

    for action in (commit, block, locked):
        assert trips(wire, make(), action) == 2


def test_a_write_without_a_lock_brings_its_begin(wire: Wire, session: Session) -> None:
    def insert(session: Session) -> None:
        session.add(Note(id=9, text="new"))
        session.save_changes()

    assert trips(wire, session, insert) == 1


def test_what_the_server_has_to_answer_costs_its_trip(wire: Wire, session: Session) -> None:
    def insert(session: Session) -> None:
        bill, _ = document(session)
        bill.total += 1
        bill.items.append(Item(name="c", value=3))  # INSERT .. RETURNING, after the UPDATE
        session.save_changes()

    assert trips(wire, session, insert) == 4


def test_a_read_in_the_midst_is_answered(wire: Wire, session: Session) -> None:
    def count(session: Session) -> None:
        session.add(Note(id=9, text="new"))
        session.flush()
        session.scalar(sa.select(sa.func.count()).select_from(Note))

    assert trips(wire, session, count) == 3  # and BEGIN


def test_a_psycopg_whose_pipeline_has_no_queue_begins_by_itself() -> None:
    libpq = SimpleNamespace(
        pipeline_status=PipelineStatus.OFF, transaction_status=TransactionStatus.IDLE
    )
    driver = SimpleNamespace(
        pgconn=libpq, autocommit=False, isolation_level=None, read_only=None, deferrable=None
    )
    made: list[str] = []
    driver.pipeline = partial(nullcontext, None)
    driver.cursor = lambda: SimpleNamespace(execute=lambda text, _: made.append(text))
    send_in_pipeline(driver, [partial(made.append, "the lock")])
    assert made == ["the lock"]


# --------------------------------------------------------------------------------------------------
# gate.run() in pipelined sessions: which error belongs to whom, and the cost of a function.

Function = Callable[[LockingSession, Bill], int]
Outcome = int | BaseException
Together = Callable[..., list[Outcome]]


@pytest.fixture
def together(bills: Database, engine: sa.Engine) -> Iterator[Together]:
    """Return a function that runs functions in one commit, and returns the results or errors."""
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
    session.get_one(Note, 1).number = 100  # violates its CHECK
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


def trips_combined(wire: Wire, together: Together, *functions: Function, pipeline: bool) -> int:
    with wire.counting() as counted:
        outcomes = together(*functions, pipeline=pipeline)
    assert all(isinstance(one, int) for one in outcomes)
    return counted[0]


def test_all_functions_together_cost_as_many_round_trips_as_one(
    wire: Wire, together: Together
) -> None:
    assert trips_combined(wire, together, add(1), pipeline=True) == 2
    assert trips_combined(wire, together, *[add(1)] * 7, pipeline=True) == 2
    assert trips_combined(wire, together, *[add(1)] * 7, pipeline=False) > 2
