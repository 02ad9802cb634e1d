"""Statements that travel together; docs/postgresql.md has these figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from psycopg.pq import PipelineStatus, TransactionStatus

from sa_doclock import LockingSession, LockOptions
from sa_doclock.dialects.postgresql.pipeline import send_in_pipeline
from tests.integration.pipeline.conftest import Sessions
from tests.integration.pipeline.models import Bill, Item, Note
from tests.integration.pipeline.only import ON_POSTGRESQL
from tests.integration.timeouts.wire import Wire
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


#: By name: what is done, with its round trips without a pipeline and with it.
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
    # Also: the one thing of psycopg that is not documented is as it was.
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
