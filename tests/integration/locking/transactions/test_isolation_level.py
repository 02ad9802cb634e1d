"""The isolation level of a lock: the server's default, and AUTOCOMMIT, which locks nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockNotSupported, LockOptions, WrongIsolation
from tests.integration.locking.connections import isolation_of
from tests.integration.locking.steps import add_ten, finds_held, reads, save, seen
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Customer, Line, Order
from tests.support.poolers import ENDS_CONNECTION
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick


# --------------------------------------------------------------------------------------------------
# An isolation level that SQLAlchemy did not set: the session asks the server once for each engine.

ForUpdate = LockOptions.ForUpdate
MakeEngine = Callable[..., sa.Engine]
SET_LEVEL = {
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {}",
    "mysql": "SET SESSION TRANSACTION ISOLATION LEVEL {}",
    "mariadb": "SET SESSION TRANSACTION ISOLATION LEVEL {}",
}


def listening(make_engine: MakeEngine, level: str) -> sa.Engine:
    """Return an engine whose connections get this level from the program's listener."""
    engine = make_engine(pool_size=1, max_overflow=0)

    def connected(connection: Any, _: object) -> None:
        product = "mysql" if engine.dialect.name in ("mysql", "mariadb") else "postgresql"
        with connection.cursor() as cursor:
            cursor.execute(SET_LEVEL[product].format(level))
        connection.commit()

    event.listen(engine, "connect", connected)
    return engine


@pytest.fixture
def strict(make_engine: MakeEngine) -> sa.Engine:
    return listening(make_engine, "REPEATABLE READ")


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@ENDS_CONNECTION
def test_what_is_read_under_the_lock_is_not_older(
    strict: sa.Engine, alice: Actor[LockingSession], dave: Callable[..., Actor[LockingSession]]
) -> None:
    waiter = dave(lambda: LockingSession(strict))
    alice.does(add_ten)
    step = waiter.starts(reads(lock_timeout=30))
    wait_until_blocked(waiter=waiter, holder=alice, step=step)
    alice.does(save)
    assert step.result(10) == (40, [20, 20])


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@ENDS_CONNECTION
@pytest.mark.parametrize("used_before", [False, True])
def test_an_open_transaction_is_refused(strict: sa.Engine, *, used_before: bool) -> None:
    with LockingSession(strict) as session:
        if used_before:
            session.get_one_entity(Order, 2, ForUpdate)
            session.rollback()
        session.get_one(Customer, 1)
        with pytest.raises(WrongIsolation, match="open at REPEATABLE READ"):
            session.get_entity(Order, 1, ForUpdate)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@ENDS_CONNECTION
def test_the_level_of_the_program_is_there_again(strict: sa.Engine) -> None:
    with strict.connect() as connection:
        before = isolation_of(connection)
    with LockingSession(strict) as session:
        session.get_one_entity(Order, 1, ForUpdate)
    with strict.connect() as connection:
        assert isolation_of(connection)[0] == before[0]


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@ENDS_CONNECTION
def test_one_that_protects_a_document_is_no_reason_to_refuse(make_engine: MakeEngine) -> None:
    engine = listening(make_engine, "READ COMMITTED")
    with LockingSession(engine) as session:
        session.get_one(Customer, 1)
        assert seen(session.get_one_entity(Order, 1, ForUpdate)) == (30, [10, 20])


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@ENDS_CONNECTION
def test_a_connection_that_was_lent_is_left_without_a_transaction(strict: sa.Engine) -> None:
    with strict.connect() as lent, LockingSession(lent) as session:
        assert seen(session.get_one_entity(Order, 1, ForUpdate)) == (30, [10, 20])


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@ENDS_CONNECTION
@pytest.mark.parametrize("lock", [ForUpdate, LockOptions.SharedRead])
@pytest.mark.parametrize("level", ["repeatable read", "SERIALIZABLE", "READ  UNCOMMITTED"])
def test_a_level_of_a_text_is_seen(make_engine: MakeEngine, level: str, lock: LockOptions) -> None:
    """Only in a transaction that has begun: before that, the first lock sets the level."""
    with LockingSession(make_engine(isolation_level="READ COMMITTED")) as session:
        session.execute(sa.text(f"set transaction isolation level {level}"))
        session.get_one(Customer, 1)
        expected = " ".join(level.upper().split())
        with pytest.raises(WrongIsolation, match=f"open at {expected}"):
            session.get_entity(Order, 1, lock)
        session.rollback()
        session.get_one(Customer, 1)
        assert seen(session.get_one_entity(Order, 1, lock)) == (30, [10, 20])


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@ENDS_CONNECTION
@pytest.mark.databases("mysql", "mariadb")
def test_a_level_of_a_text_permits_a_lock(make_engine: MakeEngine) -> None:
    with LockingSession(make_engine()) as session:
        session.execute(sa.text("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"))
        session.get_one(Customer, 1)
        assert seen(session.get_one_entity(Order, 1, ForUpdate)) == (30, [10, 20])


# --------------------------------------------------------------------------------------------------
# The isolation level of a lock is that of the transaction that is open when the session takes it.
#
# A statement that SQLAlchemy did not build can end it or set another level: the session asks the server.

Session = LockingSession
Run = Callable[..., list[Any]]
Step = Callable[[Session], object]


def text(*statements: str) -> Step:
    def step(session: Session) -> None:
        for one in statements:
            session.execute(sa.text(one)).close()

    return step


def commit_by_driver(session: Session) -> None:
    session.connection().connection.driver_connection.commit()  # type: ignore[union-attr]


# Each leaves the session in a transaction prepared for a lock, without a locked row.
NOTED: dict[str, Step] = {
    "a named lock": lambda session: session.lock_key("a name"),
    "no such row": lambda session: session.get_entity(Order, 99, ForUpdate),
    "an empty set": lambda session: session.scalars(
        session.entity_set(Order, ForUpdate).where(Order.id == 99)
    ).all(),
    "text": text("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"),
    "a lock": lambda session: session.get_entity(Order, 2, ForUpdate),
}
ENDS: dict[str, Step] = {
    "COMMIT": text("COMMIT"),
    "ROLLBACK": text("ROLLBACK"),
    "driver": commit_by_driver,
    "DDL": text("CREATE TABLE lk_beside (id INTEGER)", "DROP TABLE lk_beside"),
    "COMMIT by exec_driver_sql": lambda session: session.connection().exec_driver_sql("COMMIT"),
}


@pytest.fixture
def session(documents: Database) -> Iterator[Session]:
    """Open a session at the server's default level."""
    with LockingSession(documents.engine()) as session:
        yield session


@pytest.mark.filterwarnings("ignore:transaction already:sqlalchemy.exc.SAWarning")
@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("note", NOTED.values(), ids=NOTED)
def test_a_lock_after_the_end_reads_no_old_line(
    session: Session, elsewhere: Run, note: Step, end: Step
) -> None:
    note(session)
    end(session)
    old = session.scalars(sa.select(Line.value).where(Line.order_id == 1)).all()
    elsewhere(sa.update(Line).where(Line.order_id == 1).values(value=Line.value + 10))
    with pytest.raises(WrongIsolation):
        session.get_entity(Order, 1, ForUpdate)
    session.rollback()
    order = session.get_one_entity(Order, 1, ForUpdate)
    assert sum(line.value for line in order.lines) == sum(old) + 10 * len(old)


@pytest.mark.filterwarnings("ignore:transaction already:sqlalchemy.exc.SAWarning")
@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("note", NOTED.values(), ids=NOTED)
def test_the_next_transaction_of_the_server_gets_the_level_of_its_first_lock(
    session: Session, elsewhere: Run, note: Step, end: Step
) -> None:
    note(session)
    end(session)
    order = session.get_one_entity(Order, 1, ForUpdate)
    elsewhere(sa.update(Line).where(Line.order_id == 1).values(value=Line.value + 10))
    assert order.total + 10 * len(order.lines) == sum(line.value for line in order.lines)


SPELLINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "mysql": {
        "a comment in front": ("/* up */ SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",),
        "a variable": ("SET @@transaction_isolation = 'REPEATABLE-READ'",),
        "SESSION": ("SET SESSION transaction_isolation = 'REPEATABLE-READ'",),
    },
    "mariadb": {
        "a comment in front": ("/* up */ SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",),
        "a variable": ("SET @@tx_isolation = 'REPEATABLE-READ'",),
        "SESSION": ("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",),
    },
    "postgresql": {
        "a comment in front": ("/* up */ SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",),
        "a setting": ("SET LOCAL transaction_isolation = 'repeatable read'",),
        "BEGIN": ("COMMIT", "BEGIN ISOLATION LEVEL REPEATABLE READ"),
    },
}


@pytest.mark.filterwarnings("ignore:transaction already:sqlalchemy.exc.SAWarning")
@pytest.mark.databases(*SPELLINGS)
@pytest.mark.parametrize("spelling", sorted({name for some in SPELLINGS.values() for name in some}))
def test_the_server_is_asked_however_the_level_was_set(
    documents: Database, elsewhere: Run, spelling: str
) -> None:
    statements = SPELLINGS[documents.name].get(spelling)
    if statements is None:
        pytest.skip(f"{documents.name} has no such spelling")
    with LockingSession(documents.engine(isolation_level="READ COMMITTED")) as session:
        text(*statements)(session)
        session.scalars(sa.select(Line.value)).all()
        elsewhere(sa.update(Line).where(Line.order_id == 1).values(value=Line.value + 10))
        with pytest.raises(WrongIsolation):
            session.get_entity(Order, 1, ForUpdate)
        session.rollback()


@pytest.mark.filterwarnings("ignore:transaction already:sqlalchemy.exc.SAWarning")
@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_text_that_changes_nothing_leaves_the_level(documents: Database) -> None:
    with LockingSession(documents.engine(isolation_level="READ COMMITTED")) as session:
        text("SELECT 1")(session)
        session.scalars(sa.select(Line.value)).all()
        session.get_one_entity(Order, 1, ForUpdate)
        text("SELECT 1")(session)
        session.get_one_entity(Order, 2, ForUpdate)
        assert len(session.held_locks) == 2


# --------------------------------------------------------------------------------------------------
# AUTOCOMMIT: a lock would end with its statement, so it is refused.

AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}
LOCKS = [LockOptions.ForUpdate, LockOptions.SharedRead, LockOptions.SnapshotRead]
Open = Callable[[MakeEngine], LockingSession]


def by_engine(make_engine: MakeEngine) -> LockingSession:
    return LockingSession(make_engine(**AUTOCOMMIT))


def by_options_of_the_engine(make_engine: MakeEngine) -> LockingSession:
    return LockingSession(make_engine(execution_options=AUTOCOMMIT))


def by_a_copy_of_the_engine(make_engine: MakeEngine) -> LockingSession:
    return LockingSession(make_engine().execution_options(**AUTOCOMMIT))


def by_a_copy_of_an_engine_that_has_locked(make_engine: MakeEngine) -> LockingSession:
    engine = make_engine()
    with LockingSession(engine) as session:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    return LockingSession(engine.execution_options(**AUTOCOMMIT))


def by_connection(make_engine: MakeEngine) -> LockingSession:
    return LockingSession(make_engine().connect().execution_options(**AUTOCOMMIT))


def by_session(make_engine: MakeEngine) -> LockingSession:
    session = LockingSession(make_engine())
    session.connection(execution_options=AUTOCOMMIT)
    return session


def after_a_statement(make_engine: MakeEngine) -> LockingSession:
    session = by_engine(make_engine)
    session.get_one(Customer, 1)
    return session


def in_a_callers_transaction(make_engine: MakeEngine) -> LockingSession:
    session = by_engine(make_engine)
    session.begin()
    return session


WAYS: list[Open] = [
    by_engine,
    by_options_of_the_engine,
    by_a_copy_of_the_engine,
    by_a_copy_of_an_engine_that_has_locked,
    by_connection,
    by_session,
    after_a_statement,
    in_a_callers_transaction,
]


def test_a_lock_is_refused(make_engine: MakeEngine) -> None:
    for open_session, lock in product(WAYS, LOCKS):
        with open_session(make_engine) as session:
            with pytest.raises(LockNotSupported, match=r"Order 1 .* is in AUTOCOMMIT"):
                session.get_entity(Order, 1, lock)
            with pytest.raises(LockNotSupported, match=r"Order rows .* is in AUTOCOMMIT"):
                session.scalars(session.entity_set(Order, lock)).all()
            assert not session.held_locks, open_session
            bind = session.get_bind()
        if isinstance(bind, sa.Connection):
            bind.close()


def test_a_plain_read_is_not(make_engine: MakeEngine) -> None:
    with by_engine(make_engine) as session:
        assert session.get_one_entity(Order, 1).total == 30
        assert session.scalars(session.entity_set(Order)).all()


def test_a_session_of_another_level_on_such_an_engine_locks(
    make_engine: MakeEngine, other: LockingSession, read_committed: dict[str, Any]
) -> None:
    level = read_committed or {"isolation_level": other.connection().default_isolation_level}
    other.rollback()
    engine = make_engine(**AUTOCOMMIT).execution_options(**level)
    with LockingSession(engine) as session:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate).total = 31
        assert finds_held()(other)
        session.save_changes()
    assert other.get_one(Order, 1).total == 31
