"""A COMMIT whose answer is lost: PostgreSQL reports its outcome, and the session acts on that."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    CommitUnknown,
    DocumentGate,
    LockingSession,
    LockLost,
    LockOptions,
    async_run_transaction,
    run_transaction,
    transactional,
)
from sa_doclock.core.session import context_of
from sa_doclock.dialects.base import Outcome
from sa_doclock.dialects.postgresql.commit_outcome import PostgreSQLCommitOutcomes
from tests.integration.asyncio.drivers import connected, for_asyncio, in_a_loop
from tests.integration.commit_outcome.conftest import NAME, Through, before_or_after
from tests.integration.gate.queueing import wait_until_queued
from tests.integration.questions.conftest import DRIVERS
from tests.support.actors import PATIENCE
from tests.support.databases import Database
from tests.support.models import Customer, Order

pytestmark = [pytest.mark.quick, pytest.mark.databases("postgresql")]

ForUpdate = LockOptions.ForUpdate


CALLERS = 3
Session = LockingSession
Elsewhere = Callable[..., list[Any]]

each_mode = pytest.mark.parametrize("pipeline", [False, True], ids=["simple", "pipelined"])


def insert(session: Session) -> None:
    """Write a row without any lock."""
    session.add(Customer(id=7, name="new"))


def change(session: Session) -> None:
    session.get_one_entity(Customer, 1, ForUpdate).name = "changed"


def flush(session: Session) -> None:
    change(session)
    session.flush()


def by_statement(session: Session) -> None:
    session.execute(sa.update(Customer).where(Customer.id == 1).values(name="changed"))


def by_text(session: Session) -> None:
    session.execute(sa.text("UPDATE lk_customer SET name = 'changed' WHERE id = 1"))


def by_cursor(session: Session) -> None:
    cursor = session.connection().connection.cursor()
    cursor.execute("UPDATE lk_customer SET name = 'changed' WHERE id = 1")
    cursor.close()


def in_savepoint(session: Session) -> None:
    with session.begin_nested():
        change(session)


def in_bulk(session: Session) -> None:
    session.bulk_update_mappings(Customer, [{"id": 1, "name": "changed"}])


def by_core(session: Session) -> None:
    """Write without the session's knowledge, as writes to the table of check-outs do."""
    change_one = sa.update(Customer).where(Customer.id == 1).values(name="changed")
    find_connection(session).execute(change_one)


def find_connection(session: Session) -> sa.Connection:
    """Find its Connection, which the program never received."""
    session.get_one(Customer, 1)
    (connection,) = context_of(session).connections.all()
    return connection


WAYS = (by_core, change, flush, by_statement, by_text, by_cursor, in_savepoint, in_bulk)


def cut_of(
    session: Session,
    through: Through,
    write: Callable[[Session], object],
    *,
    done: bool,
    commit: Callable[[Session], object] = Session.save_changes,
) -> None:
    """Write, and commit over a connection that is cut; then use the session again."""
    called: list[int] = []
    write(session)
    session.on_commit(lambda: called.append(1))
    with through.cutting(done=done):
        if done:
            commit(session)
        else:
            with pytest.raises(LockLost, match="the server did not commit: nothing") as caught:
                commit(session)
            error = caught.value
            assert error.retryable
            assert error.connection_invalidated
            assert error.orig is not None
            assert error.__cause__ is error.orig
            assert not called
            session.rollback()
    assert called == [1] * done
    assert not session.in_transaction()
    assert not session.held_locks
    assert session.scalar(sa.select(sa.literal(4711))) == 4711
    session.rollback()


@before_or_after
def test_by_each_driver_and_however_it_was_written(
    through: Through, elsewhere: Elsewhere, done: bool
) -> None:
    def play(engine: sa.Engine) -> None:
        with LockingSession(engine, commit_outcome=True) as session:
            for write in WAYS:
                elsewhere(sa.update(Customer).values(name="before"))
                cut_of(session, through, write, done=done)
                assert elsewhere(NAME) == [("changed" if done else "before",)], write.__name__
            pool: Any = engine.pool
            assert pool.checkedout() == 0

    for driver in DRIVERS["postgresql"]:
        through.run(play, driver)


@before_or_after
@each_mode
def test_however_it_is_committed(
    through: Through, elsewhere: Elsewhere, done: bool, pipeline: bool
) -> None:
    def in_block_of_session(_session: Session) -> None:
        with LockingSession(engine, **options) as other, other.begin():
            change(other)

    def in_locked(_session: Session) -> None:
        with (
            LockingSession(engine, **options) as other,
            other.locked(Customer, 1) as customer,
        ):
            customer.name = "changed"

    options: dict[str, Any] = {"commit_outcome": True, "pipeline": pipeline}
    ways: dict[Callable[[Session], object], Callable[[Session], object]] = {
        Session.commit: change,
        Session.save_changes: flush,
        in_block_of_session: lambda _: None,
        in_locked: lambda _: None,
    }
    with through.engine() as engine, LockingSession(engine, **options) as session:
        for commit, write in ways.items():
            elsewhere(sa.update(Customer).values(name="before"))
            if write in (change, flush):
                cut_of(session, through, write, done=done, commit=commit)
            else:
                with through.cutting(done=done):
                    if done:
                        commit(session)
                    else:
                        with pytest.raises(LockLost, match="did not commit"):
                            commit(session)
            assert elsewhere(NAME) == [("changed" if done else "before",)]


@before_or_after
@each_mode
def test_without_any_lock(
    through: Through, elsewhere: Elsewhere, done: bool, pipeline: bool
) -> None:
    options: dict[str, Any] = {"commit_outcome": True, "pipeline": pipeline}
    with through.engine() as engine, LockingSession(engine, **options) as session:
        cut_of(session, through, insert, done=done)
    assert len(elsewhere(sa.select(Customer.id).where(Customer.id == 7))) == done


def test_the_error_names_the_document(through: Through) -> None:
    with through.engine() as engine, LockingSession(engine, commit_outcome=True) as session:
        change(session)
        with through.cutting(done=False), pytest.raises(LockLost) as caught:
            session.commit()
    error = caught.value
    assert (error.entity, error.ident, error.lock) == (Customer, 1, ForUpdate)
    assert error.reason.startswith("Customer 1 FOR UPDATE on postgresql: the connection")


@before_or_after
@each_mode
def test_run_transaction_saves_once(
    through: Through, elsewhere: Elsewhere, done: bool, pipeline: bool
) -> None:
    runs: list[int] = []
    called: list[int] = []

    def count(session: Session) -> str:
        runs.append(1)
        session.on_commit(lambda: called.append(1))
        order = session.get_one_entity(Order, 1, ForUpdate)
        order.total += 1
        return "value"

    with through.engine() as engine:
        sessions = sessionmaker(engine, class_=LockingSession, pipeline=pipeline)
        with through.cutting(done=done):
            assert run_transaction(sessions, count, backoff=0, commit_outcome=True) == "value"
        assert len(runs) == (1 if done else 2)
        with through.cutting(done=done):
            assert transactional(sessions, backoff=0, commit_outcome=True)(count)() == "value"
        with through.cutting(done=done), pytest.raises(CommitUnknown):
            run_transaction(sessions, count, backoff=0, retry_on=Exception)
    assert called == [1, 1]
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(32 + done,)]


@before_or_after
@in_a_loop
async def test_under_asyncio(through: Through, elsewhere: Elsewhere, done: bool) -> None:
    called: list[int] = []

    async def count(session: AsyncLockingSession) -> None:
        session.on_commit(lambda: called.append(1))
        order = await session.get_one_entity(Order, 1, ForUpdate)
        order.total += 1

    for driver in ("psycopg", "asyncpg"):
        async with connected(for_asyncio(through.proxy.url, driver)) as engine:
            sessions = async_sessionmaker(engine, class_=AsyncLockingSession)
            with through.cutting(done=done):
                await async_run_transaction(sessions, count, backoff=0, commit_outcome=True)
            async with sessions(commit_outcome=True) as session:
                await count(session)
                with through.cutting(done=done):
                    if done:
                        await session.save_changes()
                    else:
                        with pytest.raises(LockLost, match="did not commit"):
                            await session.save_changes()
                        await session.rollback()
            assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    number = 2 + 2 * done
    assert len(called) == number
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(30 + number,)]


@before_or_after
@each_mode
def test_a_gate_has_one_answer_for_all(
    through: Through, elsewhere: Elsewhere, done: bool, pipeline: bool
) -> None:
    called: list[int] = []

    def count(session: Session, order: Any) -> int:
        session.on_commit(lambda: called.append(1))
        order.total += 1
        return int(order.total)

    options: dict[str, Any] = {"commit_outcome": True, "pipeline": pipeline}
    gate, futures = DocumentGate(), list[Future[int]]()
    with (
        through.engine() as engine,
        LockingSession(engine) as holder,
        ThreadPoolExecutor(CALLERS) as threads,
    ):
        sessions = sessionmaker(engine, class_=LockingSession, **options)
        holder.get_one_entity(Order, 1, ForUpdate)
        run: Callable[..., int] = gate.run
        for number in range(1, CALLERS + 1):
            futures.append(threads.submit(run, sessions, Order, 1, count))
            wait_until_queued(gate, number=number)
        with through.cutting(done=done):
            holder.rollback()
            errors = [future.exception(PATIENCE) for future in futures]
    if done:
        assert [future.result() for future in futures] == [31, 32, 33]
    else:
        assert all(isinstance(one, LockLost) and one.retryable for one in errors)
    saved = CALLERS * done
    assert len(called) == saved
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(30 + saved,)]


@pytest.mark.parametrize("times", [3, 1000], ids=["it comes back", "it does not"])
def test_it_asks_until_it_can_connect(through: Through, elsewhere: Elsewhere, times: int) -> None:
    """The server is unreachable for a while, as when a proxy restarts."""
    refused: list[int] = []

    def refuse(*_: object) -> None:
        if lost and len(refused) < times:
            refused.append(1)
            raise ConnectionRefusedError

    lost = False
    with through.engine() as engine:
        sa.event.listen(engine, "do_connect", refuse)
        options: dict[str, Any] = {
            "commit_outcome": True,
            "lock_timeout": 60 if times == 3 else 0.1,
        }
        with LockingSession(engine, **options) as session:
            change(session)
            with through.cutting(done=True):
                session.flush()
                lost = True
                if times == 3:
                    session.commit()
                else:
                    with pytest.raises(CommitUnknown):
                        session.commit()
            lost = False
    assert len(refused) == 3 if times == 3 else refused
    assert elsewhere(NAME) == [("changed",)]


def test_another_connection_of_the_pool_is_not_given_up(through: Through) -> None:
    with through.engine() as engine, engine.connect() as connection:
        kept = connection.connection.driver_connection
        with LockingSession(engine, commit_outcome=True) as session:
            cut_of(session, through, change, done=True)
        connection.close()
        with engine.connect() as again:
            assert again.connection.driver_connection is not None
            assert kept is not None
            assert not kept.closed


def test_a_commit_that_the_server_refuses_is_its_error(through: Through) -> None:
    """Only a lost connection triggers the lookup."""
    deferred = sa.text("ALTER TABLE lk_line ADD CONSTRAINT later UNIQUE (value) DEFERRABLE")
    dropped = sa.text("ALTER TABLE lk_line DROP CONSTRAINT later")
    with through.engine() as engine, LockingSession(engine, commit_outcome=True) as session:
        with engine.begin() as connection:
            connection.execute(sa.text("UPDATE lk_line SET value = id"))
            connection.execute(deferred)
        try:
            session.execute(sa.text("SET CONSTRAINTS later DEFERRED"))
            session.execute(sa.text("UPDATE lk_line SET value = 1"))
            with pytest.raises(sa.exc.IntegrityError):
                session.commit()
            session.rollback()
        finally:
            with engine.begin() as connection:
                connection.execute(dropped)


def test_a_plain_session_of_the_same_engine_is_as_it_was(through: Through) -> None:
    with through.engine(pool_size=1, max_overflow=0) as engine:
        with LockingSession(engine, commit_outcome=True) as session:
            change(session)
            session.rollback()
        with LockingSession(engine) as session:
            change(session)
            with through.cutting(done=True), pytest.raises(CommitUnknown):
                session.commit()
        with sa.orm.Session(engine) as plain:
            plain.add(Customer(id=8, name="new"))
            with through.cutting(done=True), pytest.raises(sa.exc.OperationalError) as caught:
                plain.commit()
            assert not isinstance(caught.value, CommitUnknown)


def test_two_phases_are_refused(through: Through) -> None:
    with through.engine() as engine:
        with pytest.raises(ValueError, match="commit_outcome=True and twophase=True exclude"):
            LockingSession(engine, twophase=True, commit_outcome=True)
        sessions = sessionmaker(engine, class_=LockingSession, twophase=True)
        with pytest.raises(ValueError, match="exclude each other"):
            run_transaction(sessions, change, commit_outcome=True)
        with pytest.raises(TypeError, match="commit_outcome must be True or False, not 1"):
            run_transaction(sessions, change, commit_outcome=1)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------
# A transaction id is valid in one history of one server; elsewhere it proves less.

COMMITTED, ABORTED, UNKNOWN = Outcome.COMMITTED, Outcome.ABORTED, Outcome.UNKNOWN
#: The known facts about a transaction, if it was committed and if it was not.
KNOWN = {
    None: (COMMITTED, ABORTED),
    "cluster": (UNKNOWN, UNKNOWN),
    "timeline": (UNKNOWN, ABORTED),
    "recovery": (UNKNOWN, ABORTED),
}


@pytest.mark.parametrize("other", KNOWN)
def test_of_another_history(documents: Database, other: str | None) -> None:
    outcomes, found = PostgreSQLCommitOutcomes(), []
    with documents.engine().connect() as connection:
        for end in (connection.commit, connection.rollback):
            connection.execute(sa.text("SELECT pg_current_xact_id()"))
            number, *history = connection.exec_driver_sql(outcomes.question).one()
            end()
            now = zip(("cluster", "timeline", "recovery"), history, strict=True)
            then = ["another" if name == other else value for name, value in now]
            found.append(outcomes.outcome(connection, (number, *then)))
            connection.rollback()
    assert tuple(found) == KNOWN[other]


def test_of_a_transaction_that_runs_and_of_one_that_the_server_does_not_have(
    documents: Database,
) -> None:
    outcomes, engine = PostgreSQLCommitOutcomes(), documents.engine()
    with engine.connect() as connection, engine.connect() as running:
        running.execute(sa.text("SELECT pg_current_xact_id()"))
        number, *history = running.exec_driver_sql(outcomes.question).one()
        assert outcomes.outcome(connection, (number, *history)) is Outcome.IN_PROGRESS
        assert outcomes.outcome(connection, (str(int(number) + 10**6), *history)) is ABORTED
        connection.rollback()
        assert outcomes.outcome(connection, ("3", *history)) in (COMMITTED, UNKNOWN)
