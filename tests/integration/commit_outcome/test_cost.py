"""The question before COMMIT is one round trip, and only where something may have been written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions, run_transaction
from tests.integration.timeouts.wire import Wire, over, wire_to
from tests.support.databases import Database
from tests.support.models import Customer

pytestmark = [pytest.mark.quick, pytest.mark.databases("postgresql")]

ForUpdate = LockOptions.ForUpdate
Session = LockingSession


@pytest.fixture
def wire(documents: Database) -> Iterator[Wire]:
    """Stand in front of the server."""
    wire = wire_to(documents.url)
    yield wire
    wire.close()


@pytest.fixture
def trips(documents: Database, wire: Wire) -> Iterator[Callable[..., int]]:
    """Return a function that counts the round trips of a transaction, once the engine knows its server."""
    unprepared: Any = {"connect_args": {"prepare_threshold": None}}  # to prepare is a round trip
    engine = sa.create_engine(over(wire, documents.url), pool_size=1, max_overflow=0, **unprepared)

    def count(act: Callable[[Session], object], **options: Any) -> int:
        with wire.counting() as counted, LockingSession(engine, **options) as session:
            act(session)
            session.commit()
        return counted[0]

    # What is asked once of an engine or a connection, before anything is counted.
    for _ in range(2):
        count(change, commit_outcome=True)
    yield count
    engine.dispose()


def change(session: Session) -> None:
    customer = session.get_one_entity(Customer, 1, ForUpdate)
    customer.name += "!"


def change_and_flush(session: Session) -> None:
    change(session)
    session.flush()


def lock_alone(session: Session) -> None:
    session.get_one_entity(Customer, 1, ForUpdate)


def read(session: Session) -> None:
    session.get_one(Customer, 1)
    session.scalars(sa.select(Customer.name)).all()


@pytest.mark.parametrize("pipeline", [False, True], ids=["simple", "pipelined"])
def test_it_costs_one_round_trip_and_none_without_writes(
    trips: Callable[..., int], pipeline: bool
) -> None:
    def more(act: Callable[[Session], object]) -> int:
        without = trips(act, pipeline=pipeline)
        return trips(act, pipeline=pipeline, commit_outcome=True) - without

    found = {act.__name__: more(act) for act in (change, change_and_flush, lock_alone, read)}
    assert found == {"change": 1, "change_and_flush": 1, "lock_alone": 0, "read": 0}


def test_with_a_pipeline_it_travels_with_the_writes(trips: Callable[..., int]) -> None:
    # BEGIN and the lock; the writes and the question; COMMIT
    assert trips(change, pipeline=True, commit_outcome=True) == 3


def test_run_transaction_asks_only_with_its_option(documents: Database) -> None:
    sent: list[str] = []
    engine = documents.engine()

    def sessions() -> Session:
        return LockingSession(engine)

    def note(connection: Any, *_: object) -> None:
        own = connection.cursor_factory

        class Cursor(own):  # type: ignore[misc,valid-type]
            def execute(self, query: Any, *args: Any, **options: Any) -> Any:
                sent.append(str(query))
                return super().execute(query, *args, **options)

        connection.cursor_factory = Cursor

    sa.event.listen(engine, "connect", note)
    run_transaction(sessions, change)
    assert not [one for one in sent if "pg_current_xact_id" in one]
    for _ in range(3):
        run_transaction(sessions, change, commit_outcome=True)
    asked = [one for one in sent if "pg_current_xact_id_if_assigned()" in one]
    assert len(asked) == 1 + 3  # once whether the server can answer
