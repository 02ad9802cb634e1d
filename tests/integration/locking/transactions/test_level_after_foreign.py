"""The isolation level of a lock is that of the transaction which is open when the lock is taken.

A statement that SQLAlchemy has not built may end the transaction, or set another level: the server is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions, WrongIsolation
from tests.support.databases import Database
from tests.support.models import Line, Order

pytestmark = [
    pytest.mark.quick,
    pytest.mark.filterwarnings("ignore:transaction already:sqlalchemy.exc.SAWarning"),
]

ForUpdate = LockOptions.ForUpdate
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


# Each leaves the session in a transaction that was made fit for a lock, and holds no row.
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


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_text_that_changes_nothing_leaves_the_level(documents: Database) -> None:
    with LockingSession(documents.engine(isolation_level="READ COMMITTED")) as session:
        text("SELECT 1")(session)
        session.scalars(sa.select(Line.value)).all()
        session.get_one_entity(Order, 1, ForUpdate)
        text("SELECT 1")(session)
        session.get_one_entity(Order, 2, ForUpdate)
        assert len(session.held_locks) == 2
