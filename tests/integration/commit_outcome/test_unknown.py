"""CommitUnknown: the answer of a COMMIT is lost, and the session does not learn its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import CommitUnknown, LockingSession, LockLost, LockOptions, run_transaction
from tests.integration.commit_outcome.conftest import NAME, Through, before_or_after
from tests.integration.questions.conftest import DRIVERS
from tests.integration.timeouts.ways import Wire, over, wire_to
from tests.reliability.faults.proxy import StatementReset
from tests.support.databases import Database
from tests.support.models import Customer, Order

pytestmark = pytest.mark.quick

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
Elsewhere = Callable[..., list[Any]]


def change(session: Session) -> None:
    session.get_one_entity(Customer, 1, ForUpdate).name = "changed"


def unlocked(session: Session) -> None:
    session.get_one(Customer, 1).name = "changed"


def lose(session: Session, through: Through, *, done: bool) -> CommitUnknown:
    """Lose the answer, and use the session again."""
    called: list[int] = []
    session.on_commit(lambda: called.append(1))
    with through.cutting(done=done), pytest.raises(CommitUnknown) as caught:
        session.commit()
    assert not session.held_locks
    session.rollback()
    assert not called
    assert session.scalar(sa.select(sa.literal(4711))) == 4711
    session.rollback()
    return caught.value


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@before_or_after
def test_by_each_driver(through: Through, elsewhere: Elsewhere, done: bool) -> None:
    def play(engine: sa.Engine) -> None:
        with LockingSession(engine) as session:
            for write in (change, unlocked):
                elsewhere(sa.update(Customer).values(name="before"))
                write(session)
                error = lose(session, through, done=done)
                assert not error.retryable
                assert error.connection_invalidated
                assert error.orig is not None
                assert error.__cause__ is error.orig
                named = (Customer, 1, ForUpdate) if write is change else (None, None, None)
                assert (error.entity, error.ident, error.lock) == named
                assert "saved as a whole, or not at all" in error.reason
                assert elsewhere(NAME) == [("changed" if done else "before",)]

    for driver in DRIVERS[through.documents.name]:
        through.run(play, driver)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@before_or_after
@pytest.mark.databases("mysql", "mariadb")
def test_the_option_knows_no_more_on_other_databases(
    through: Through, elsewhere: Elsewhere, done: bool
) -> None:
    elsewhere(sa.update(Customer).values(name="before"))
    with through.engine() as engine, LockingSession(engine, commit_outcome=True) as session:
        change(session)
        lose(session, through, done=done)
    assert elsewhere(NAME) == [("changed" if done else "before",)]


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.databases("postgresql")
def test_of_a_transaction_that_has_only_read_nothing_is_asked(through: Through) -> None:
    with through.engine() as engine, LockingSession(engine, commit_outcome=True) as session:
        session.get_one_entity(Customer, 1, ForUpdate)
        lose(session, through, done=True)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_rollback_saves_nothing_for_sure(through: Through) -> None:
    with through.engine() as engine, LockingSession(engine) as session:
        change(session)
        session.flush()
        through.proxy.commit_cut = cut = StatementReset("ROLLBACK")
        with pytest.raises(sa.exc.OperationalError) as caught:
            session.rollback()
        assert cut.happened
        assert not isinstance(caught.value, CommitUnknown)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("text", ["COMMIT", " commit", "/* done */ COMMIT"])
def test_one_that_the_program_sends_as_text(through: Through, text: str) -> None:
    with through.engine() as engine, LockingSession(engine) as session:
        change(session)
        session.flush()
        with through.cutting(done=True), pytest.raises(CommitUnknown):
            session.execute(sa.text(text))


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_one_of_a_connection_that_was_lent(through: Through) -> None:
    read_committed: Any = {"isolation_level": "READ COMMITTED"}
    with through.engine(**read_committed) as engine, engine.connect() as connection:
        transaction = connection.begin()
        with LockingSession(connection) as session:
            change(session)
            session.flush()
            with through.cutting(done=True), pytest.raises(CommitUnknown):
                transaction.commit()


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("words", ["PREPARE", "COMMIT"])
def test_of_two_phases(through: Through, words: str) -> None:
    """After PREPARE the server keeps the transaction and its locks, so it is not lost."""
    with through.engine() as engine, LockingSession(engine, twophase=True) as session:
        change(session)
        through.proxy.commit_cut = cut = StatementReset(words)
        with pytest.raises(CommitUnknown):
            session.commit()
        assert cut.happened
    end = through.documents.observer()
    with end.connect() as connection:
        if through.documents.name == "postgresql":
            found = connection.scalars(sa.text("SELECT gid FROM pg_prepared_xacts")).all()
            for name in found:
                connection.exec_driver_sql(f"ROLLBACK PREPARED '{name}'")
        else:
            rows = connection.exec_driver_sql("XA RECOVER").all()
            found = [one.decode() if isinstance(one, bytes) else one for *_, one in rows]
            for name in found:
                connection.exec_driver_sql(f"XA ROLLBACK '{name}'")
    assert len(found) == (words == "COMMIT")


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.databases("postgresql")
def test_of_two_databases(through: Through, first: bool) -> None:
    """One may have committed: running everything again would not undo that."""
    with through.engine() as engine, through.engine() as second:
        binds: dict[Any, Any] = {Customer: second}
        with LockingSession(engine, binds=binds, commit_outcome=True) as session:
            change(session)
            session.get_one_entity(Order, 1, ForUpdate).total += 1
            with through.cutting(done=first):
                if first:
                    session.commit()
                else:
                    with pytest.raises(CommitUnknown, match="each of the 2 databases") as caught:
                        session.commit()
                    assert not isinstance(caught.value, LockLost)


# --------------------------------------------------------------------------------------------------
# The question before COMMIT costs one round trip, and only if the transaction might have written.


@pytest.fixture
def wire(documents: Database) -> Iterator[Wire]:
    """Run a proxy in front of the server."""
    wire = wire_to(documents.url)
    yield wire
    wire.close()


@pytest.fixture
def trips(documents: Database, wire: Wire) -> Iterator[Callable[..., int]]:
    """Return a function that counts the round trips of a transaction on a warmed-up engine."""
    unprepared: Any = {"connect_args": {"prepare_threshold": None}}  # preparing costs a round trip
    engine = sa.create_engine(over(wire, documents.url), pool_size=1, max_overflow=0, **unprepared)

    def count(act: Callable[[Session], object], **options: Any) -> int:
        with wire.counting() as counted, LockingSession(engine, **options) as session:
            act(session)
            session.commit()
        return counted[0]

    # Run the queries that an engine or a connection sends once, before the count begins.
    for _ in range(2):
        count(change_cost, commit_outcome=True)
    yield count
    engine.dispose()


def change_cost(session: Session) -> None:
    customer = session.get_one_entity(Customer, 1, ForUpdate)
    customer.name += "!"


def change_and_flush(session: Session) -> None:
    change_cost(session)
    session.flush()


def lock_alone(session: Session) -> None:
    session.get_one_entity(Customer, 1, ForUpdate)


def read(session: Session) -> None:
    session.get_one(Customer, 1)
    session.scalars(sa.select(Customer.name)).all()


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("pipeline", [False, True], ids=["simple", "pipelined"])
def test_it_costs_one_round_trip_and_none_without_writes(
    trips: Callable[..., int], pipeline: bool
) -> None:
    def more(act: Callable[[Session], object]) -> int:
        without = trips(act, pipeline=pipeline)
        return trips(act, pipeline=pipeline, commit_outcome=True) - without

    found = {act.__name__: more(act) for act in (change_cost, change_and_flush, lock_alone, read)}
    assert found == {"change_cost": 1, "change_and_flush": 1, "lock_alone": 0, "read": 0}


@pytest.mark.databases("postgresql")
def test_with_a_pipeline_it_travels_with_the_writes(trips: Callable[..., int]) -> None:
    # BEGIN and the lock; the writes and the query; COMMIT
    assert trips(change_cost, pipeline=True, commit_outcome=True) == 3


@pytest.mark.databases("postgresql")
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
    run_transaction(sessions, change_cost)
    assert not [one for one in sent if "pg_current_xact_id" in one]
    for _ in range(3):
        run_transaction(sessions, change_cost, commit_outcome=True)
    asked = [one for one in sent if "pg_current_xact_id_if_assigned()" in one]
    assert len(asked) == 1 + 3  # one query whether the server can answer
