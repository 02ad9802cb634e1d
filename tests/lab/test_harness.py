"""The tests' own tools, tested with SQLAlchemy alone, without sa_doclock's locks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from lab.running.kept import KeptTables
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.waits import wait_until_blocked


class Base(DeclarativeBase):
    """The tables of this file."""


class Row(Base):
    """A row to lock."""

    __tablename__ = "harness_row"
    id: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[int]


@pytest.fixture
def session_factory(database: Database) -> Callable[[], Session]:
    """Make plain sessions on a table with rows 1 and 2."""
    database.create(Base.metadata)
    factory = sessionmaker(database.engine())
    with factory.begin() as session:
        session.add_all([Row(id=1, value=0), Row(id=2, value=0)])
    return factory


def lock(session: Session, ident: int = 1, *, shared: bool = False) -> None:
    """Lock one row by hand, in the first statement of the transaction."""
    dialect = session.get_bind().dialect.name
    if dialect == "sqlite":
        session.connection().exec_driver_sql("BEGIN IMMEDIATE")
        return
    query = sa.select(Row).where(Row.id == ident)
    if dialect == "mssql":
        hint = "HOLDLOCK" if shared else "UPDLOCK"
        query = query.with_hint(Row, f"WITH ({hint}, ROWLOCK)")
    session.execute(query.with_for_update(read=shared))


def lock_shared(session: Session) -> None:
    """Lock row 1 with a shared lock."""
    lock(session, shared=True)


def commit(session: Session) -> None:
    """Release every lock."""
    session.commit()


def test_the_server_says_who_waits(alice: Actor[Session], bob: Actor[Session]) -> None:
    alice.does(lock)
    queued = bob.starts(lock)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(commit)
    queued.result()


@pytest.mark.not_databases("sqlite")
def test_a_wait_behind_another_waiter_is_seen(
    alice: Actor[Session], bob: Actor[Session], carol: Actor[Session]
) -> None:
    alice.does(lock)
    second = bob.starts(lock)
    wait_until_blocked(waiter=bob, holder=alice, step=second)
    third = carol.starts(lock)
    wait_until_blocked(waiter=carol, holder=alice, step=third)
    alice.does(commit)
    second.result()
    wait_until_blocked(waiter=carol, holder=bob, step=third)
    bob.does(commit)
    third.result()


@pytest.mark.not_databases("sqlite", "mssql")  # where UPDLOCK is granted next to a reader's S lock
def test_a_writer_waits_for_a_reader(alice: Actor[Session], bob: Actor[Session]) -> None:
    alice.does(lock_shared)
    bob.does(lock_shared)
    bob.does(commit)
    queued = bob.starts(lock)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(commit)
    queued.result()


@pytest.mark.databases("sqlite-journal")
def test_a_commit_waits_for_a_reader(alice: Actor[Session], bob: Actor[Session]) -> None:
    def read(session: Session) -> None:
        session.connection().exec_driver_sql("BEGIN")
        session.get_one(Row, 1)

    bob.does(lock)
    bob.does(lambda session: session.execute(sa.update(Row).values(value=1)))
    alice.does(read)
    queued = bob.starts(commit)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(commit)
    queued.result()


def test_a_step_that_does_not_wait_is_reported(alice: Actor[Session], bob: Actor[Session]) -> None:
    alice.does(lambda session: session.get_one(Row, 1))
    with pytest.raises(AssertionError, match="bob did not wait for alice"):
        wait_until_blocked(waiter=bob, holder=alice, step=bob.starts(lock))


@pytest.mark.not_databases("sqlite")
def test_waiting_for_somebody_else_is_reported(
    alice: Actor[Session], bob: Actor[Session], carol: Actor[Session]
) -> None:
    alice.does(lock)
    carol.does(lambda session: lock(session, 2))
    queued = bob.starts(lock)
    with pytest.raises(AssertionError, match=r"bob does not wait for carol .* waits for"):
        wait_until_blocked(waiter=bob, holder=carol, step=queued, seconds=0.5)
    alice.does(commit)
    queued.result()


def test_the_failure_of_a_step_comes_out(alice: Actor[Session], bob: Actor[Session]) -> None:
    def fail(_: Session) -> None:
        msg = "no such row"
        raise LookupError(msg)

    with pytest.raises(LookupError, match="no such row"):
        bob.does(fail)
    with pytest.raises(LookupError, match="no such row"):
        wait_until_blocked(waiter=bob, holder=alice, step=bob.starts(fail))


def test_a_failure_that_nobody_looks_at_comes_out_when_the_actor_leaves(
    database: Database, session_factory: Callable[[], Session]
) -> None:
    actor = Actor("dave", session_factory, database)
    actor.starts(lambda session: session.get_one(Row, 99))
    actor.leave()
    with pytest.raises(sa.exc.NoResultFound):
        actor.join()


@pytest.mark.not_databases("sqlite")
def test_the_id_is_known_before_the_first_statement(
    database: Database, alice: Actor[Session]
) -> None:
    assert alice.connection_ids() == frozenset()
    alice.does(lambda session: session.connection())
    known = alice.connection_id()
    ask = {"postgresql": "pg_backend_pid()", "mssql": "@@SPID"}.get(
        database.name, "CONNECTION_ID()"
    )
    assert alice.does(lambda session: session.scalar(sa.text(f"SELECT {ask}"))) == known
    alice.does(commit)
    assert alice.connection_ids() == frozenset()


def test_tables_that_are_still_locked_are_reported(
    database: Database, alice: Actor[Session]
) -> None:
    alice.does(lock)
    database.lock_timeout = 1
    with pytest.raises(RuntimeError, match="still hold a lock"):
        database.drop_tables()
    alice.does(commit)


@pytest.mark.databases("sqlite")
def test_both_journal_modes_are_tested(database: Database) -> None:
    with database.engine().connect() as connection:
        mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
    assert mode == {"sqlite": "wal", "sqlite-journal": "delete"}[database.column]


# --------------------------------------------------------------------------------------------------
# Kept tables get their rows back, and no other rows, whatever the previous test did.

METADATA = sa.MetaData()
THINGS = sa.Table(
    "kept_things",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(20), default="new"),
    sa.Column("data", sa.JSON),
    sa.Column("more", sa.JSON),
)
ROWS = [(1, "it's", {"a": 'b"c'}), (2, "new", [])]
#: Things that a test may leave behind.
LEFT = {
    "nothing": [],
    "other rows": [THINGS.delete(), THINGS.insert().values(id=7)],
    "other values": [THINGS.update().values(name="other", more=[1])],
    "no table": [sa.text("DROP TABLE kept_things")],
}


def fill(connection: sa.Connection) -> None:
    first, second = ({"id": id_, "name": name, "data": data} for id_, name, data in ROWS)
    connection.execute(THINGS.insert(), [first])
    connection.execute(THINGS.insert().values(id=second["id"], data=second["data"]))


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptTables]:
    tables = KeptTables(METADATA, fill)
    yield tables
    tables.close()


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
def test_the_next_test_finds_the_rows(
    database: Database, kept: KeptTables, left: list[sa.Executable]
) -> None:
    engine = database.engine()
    kept.put_rows(database)
    with engine.begin() as connection:
        for statement in left:
            connection.execute(statement)
    engine.dispose()  # with SQLite, the next test uses another file
    kept.put_rows(database)
    with engine.connect() as connection:
        found = connection.execute(sa.select(THINGS).order_by(THINGS.c.id)).all()
        empty = sa.select(sa.func.count()).where(THINGS.c.more.is_(sa.null()))
        assert connection.scalar(empty) == len(ROWS)
    assert [tuple(row)[:3] for row in found] == ROWS
