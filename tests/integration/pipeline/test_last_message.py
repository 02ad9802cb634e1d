"""A pipeline ends with Sync: the server's clock of an idle transaction runs from there on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from psycopg.pq import Trace
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions
from tests.integration.pipeline.models import Bill, Item
from tests.integration.pipeline.only import ON_POSTGRESQL
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.waits import wait_until_blocked

pytestmark = ON_POSTGRESQL

Session = LockingSession
Sent = list[str]


@pytest.fixture
def session_factory(bills: Database) -> sessionmaker[Session]:
    return sessionmaker(bills.engine(), class_=Session)


@contextmanager
def traced(session: Session) -> Iterator[Sent]:
    """Append the names of the messages that are sent in this block, as libpq tells them."""
    driver: Any = session.connection().connection.driver_connection
    sent: Sent = []
    with tempfile.TemporaryFile(mode="w+") as file:
        driver.pgconn.trace(file.fileno())
        driver.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        try:
            yield sent
        finally:
            driver.pgconn.untrace()
            file.seek(0)
            # F: from the frontend.  A statement of several lines is a message of several.
            sent += [line.split("\t")[2].strip() for line in file if line.startswith("F\t")]


def lock(session: Session, **how: Any) -> None:
    session.get_one_entity(Bill, 1, LockOptions.ForUpdate, **how)


def lock_and_change_many(session: Session) -> None:
    session.lock_key("another")
    session.execute(sa.update(Item), [{"id": -1, "value": 1}, {"id": -2, "value": 2}])


def hold_all(session: Session) -> None:
    lock(session)
    session.lock_key("key")
    session.execute(sa.update(Item).values(value=0))


#: By name: the options of a session, and what it does, which waits: no answer has come when Sync is sent.
WAYS: dict[str, tuple[dict[str, Any], Callable[[Session], object]]] = {
    "lock_timeout": ({}, partial(lock, lock_timeout=30)),
    "key": ({}, lambda session: session.lock_key("key", lock_timeout=30)),
    "hold_limit": ({"hold_limit": 600}, lock),
    "hold_limit, many rows": ({"hold_limit": 600}, lock_and_change_many),
    "pipeline": ({"pipeline": True}, lock),
}


@pytest.mark.parametrize("way", WAYS)
def test_sync_is_the_last_message(alice: Actor[Session], bob: Actor[Session], way: str) -> None:
    options, action = WAYS[way]

    def take(session: Session) -> Sent:
        with Session(session.get_bind(), **options) as own:
            with traced(own) as sent:
                action(own)
            return sent

    alice.does(hold_all)
    waiting = bob.starts(take)
    wait_until_blocked(waiter=bob, holder=alice, step=waiting)
    alice.does(Session.rollback)
    sent = waiting.result()
    assert sent[-1] == "Sync"
    assert "Flush" not in sent
