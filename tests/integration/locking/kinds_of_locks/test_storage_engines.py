"""Tables of MySQL and MariaDB that accept FOR UPDATE, but silently lock nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pymysql.cursors
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import LockingSession, LockNotAvailable, LockNotSupported, LockOptions
from sa_doclock.dialects import table_answers
from tests.support.databases import Database
from tests.support.models import Customer, Lease, Order

pytestmark = [pytest.mark.each_value, pytest.mark.databases("mysql", "mariadb")]

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Session = LockingSession


class Base(DeclarativeBase):
    """Tables of this file."""


class Old(Base):
    """A table made before InnoDB was the default."""

    __tablename__ = "lk_old"
    __table_args__ = {"mysql_engine": "MyISAM", "mariadb_engine": "MyISAM"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)


class Fleeting(Base):
    __tablename__ = "lk_fleeting"
    __table_args__ = {"mysql_engine": "MEMORY", "mariadb_engine": "MEMORY"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)


class Crashsafe(Base):
    """Aria; MySQL has no such engine, so it does not get the table."""

    __tablename__ = "lk_crashsafe"
    __table_args__ = {"mysql_engine": "MyISAM", "mariadb_engine": "Aria"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)


class Sound(Base):
    __tablename__ = "lk_sound"
    __table_args__ = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine(make_engine: Callable[..., sa.Engine], database: Database) -> sa.Engine:
    """Create the tables, each with one row."""
    database.create(Base.metadata)
    engine = make_engine()
    with Session(engine) as session, session.begin():
        session.add_all([Old(id=1), Fleeting(id=1), Crashsafe(id=1), Sound(id=1)])
    return engine


@pytest.mark.parametrize("entity", [Old, Fleeting, Crashsafe])
@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
def test_a_table_without_row_locks_is_refused(
    session: Session, entity: type[Any], lock: LockOptions
) -> None:
    reported = f"table '{entity.__tablename__}' is stored by (MyISAM|MEMORY|Aria), which has no row"
    with pytest.raises(LockNotSupported, match=reported):
        session.get_entity(entity, 1, lock)
    assert not session.in_transaction()
    with pytest.raises(LockNotSupported, match=reported):
        session.scalars(session.entity_set(entity, lock)).all()
    assert session.get_one_entity(entity, 1).id == 1  # a plain read


@pytest.mark.parametrize("entity", [Old, Fleeting, Crashsafe])
def test_so_is_its_with_for_update(session: Session, entity: type[Any]) -> None:
    reported = (
        f"{entity.__name__} rows FOR UPDATE on .*: table '{entity.__tablename__}' is stored by"
    )
    for _ in range(2):
        with pytest.raises(LockNotSupported, match=reported):
            session.scalars(sa.select(entity).with_for_update()).all()
        assert not session.in_transaction()
        assert not session.held_locks
    assert session.scalars(sa.select(Sound).with_for_update()).one().id == 1


WITHOUT_A_KEY: dict[str, Callable[[type[Any]], sa.Select[Any]]] = {
    "an expression": lambda entity: sa.select(entity.id + 1),
    "a function": lambda entity: sa.select(sa.func.count(entity.id)),
    "a constant": lambda entity: sa.select(sa.literal(1)).select_from(entity),
    "no row": lambda entity: sa.select(entity).where(entity.id == 99),
}


@pytest.mark.parametrize("entity", [Old, Fleeting, Crashsafe])
@pytest.mark.parametrize("select", WITHOUT_A_KEY.values(), ids=WITHOUT_A_KEY)
def test_so_is_one_that_returns_no_key(
    session: Session, entity: type[Any], select: Callable[[type[Any]], sa.Select[Any]]
) -> None:
    reported = f"table '{entity.__tablename__}' is stored by"
    with pytest.raises(LockNotSupported, match=reported):
        session.execute(select(entity).with_for_update())
    session.execute(select(Sound).with_for_update()).all()


@pytest.mark.parametrize("entity", [Old, Fleeting, Crashsafe])
@pytest.mark.parametrize("nested", [False, True])
def test_so_is_that_of_its_table(session: Session, entity: type[Any], nested: bool) -> None:
    statement = sa.select(entity.__table__).with_for_update()
    reported = f"table '{entity.__tablename__}' is stored by"
    with pytest.raises(LockNotSupported, match=reported):
        session.execute(sa.select(statement.subquery()) if nested else statement)


@pytest.mark.parametrize("lock_by", ["a class", "a table", "a subquery"])
@pytest.mark.parametrize("ending", ["GROUP BY id", "UNION SELECT 2", "LIMIT 1"])
def test_a_view_that_the_server_copies_is_refused(
    engine: sa.Engine, ending: str, lock_by: str
) -> None:
    class OtherBase(DeclarativeBase):
        pass

    class Copied(OtherBase):
        __tablename__ = "lk_copied"
        id: Mapped[int] = mapped_column(primary_key=True)

    locked = sa.select(Copied.__table__).with_for_update()
    statement = {
        "a class": sa.select(Copied).with_for_update(),
        "a table": locked,
        "a subquery": sa.select(locked.subquery()),
    }[lock_by]
    with engine.begin() as connection:
        view = f"CREATE OR REPLACE VIEW lk_copied AS SELECT id FROM lk_sound {ending}"
        connection.exec_driver_sql(view)
    try:
        with Session(engine) as session, pytest.raises(LockNotSupported, match="is a view"):
            session.execute(statement)
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP VIEW lk_copied")


def test_a_view_is_taken_at_its_word(engine: sa.Engine) -> None:
    """A hand-written FOR UPDATE locks the rows of its table; a program may rely on it."""

    class OtherBase(DeclarativeBase):
        pass

    class Seen(OtherBase):
        __tablename__ = "lk_seen"
        id: Mapped[int] = mapped_column(primary_key=True)

    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE OR REPLACE VIEW lk_seen AS SELECT id FROM lk_sound")
    try:
        with Session(engine) as session, Session(engine) as other:
            assert session.get_one(Seen, 1, with_for_update=True).id == 1
            assert session.held_locks == {(Seen, (1,)): ForUpdate}
            with pytest.raises(LockNotAvailable):
                other.get_entity(Sound, 1, ForUpdate | LockOptions.NoWait)
            session.rollback()
            with pytest.raises(
                LockNotSupported, match=r"'lk_seen' is a view, .* Lock the row"
            ) as caught:
                session.get_entity(Seen, 1, ForUpdate)
            assert "ALTER TABLE" not in str(caught.value)  # a view has no engine
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP VIEW lk_seen")


@pytest.mark.parametrize(("algorithm", "locks"), [("MERGE", True), ("TEMPTABLE", False)])
def test_the_server_locks_nothing_through_a_view_that_it_copies(
    engine: sa.Engine, algorithm: str, locks: bool
) -> None:
    view = f"CREATE OR REPLACE ALGORITHM={algorithm} VIEW lk_seen AS SELECT id FROM lk_sound"
    with engine.begin() as connection:
        connection.exec_driver_sql(view)
    try:
        with engine.connect() as one, engine.connect() as other:
            one.exec_driver_sql("SELECT id FROM lk_seen WHERE id = 1 FOR UPDATE")
            with pytest.raises(sa.exc.DBAPIError) if locks else nullcontext():
                other.exec_driver_sql("SELECT id FROM lk_sound WHERE id = 1 FOR UPDATE NOWAIT")
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP VIEW lk_seen")


@pytest.mark.parametrize(
    "rows",
    [
        "SELECT id FROM (SELECT id FROM lk_sound) d",
        "WITH q AS (SELECT id FROM lk_sound) SELECT id FROM q",
    ],
)
def test_a_view_whose_rows_are_all_of_a_subquery_is_refused(
    engine: sa.Engine, session: Session, rows: str
) -> None:
    seen = sa.select(sa.table("lk_seen", sa.column("id")))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE OR REPLACE VIEW lk_seen AS {rows}")
    try:
        with pytest.raises(LockNotSupported, match="'lk_seen' is a view"):
            session.scalars(seen.with_for_update()).all()
    finally:
        session.rollback()
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP VIEW lk_seen")


def test_innodb_is_not(session: Session) -> None:
    assert session.get_one_entity(Sound, 1, ForUpdate).id == 1


@pytest.fixture
def reported() -> list[str]:
    """Record the statements of ``recording`` as the driver gets them, including ours."""
    return []


@pytest.fixture
def recording(
    make_engine: Callable[..., sa.Engine], reported: list[str]
) -> Callable[..., sa.Engine]:
    """Return a maker of engines whose driver records its statements."""

    class Recording(pymysql.cursors.Cursor):
        def execute(self, query: Any, args: Any = None) -> int:
            reported.append(str(query))
            return super().execute(query, args)

    return partial(make_engine, connect_args={"cursorclass": Recording})


def questions(statements: list[str]) -> int:
    """Count the queries about a table."""
    marks = ("information_schema.tables", "SHOW CREATE TABLE")
    return sum(any(mark in text for mark in marks) for text in statements)


def test_it_is_asked_once_for_a_table_and_an_engine(
    recording: Callable[[], sa.Engine], reported: list[str]
) -> None:
    one = recording()
    for _ in range(2):
        with Session(one) as session:
            session.get_one_entity(Order, 1, ForUpdate)
            session.get_one_entity(Order, 2, ForUpdate)
            session.scalars(session.entity_set(Order, ForUpdate)).all()
    assert questions(reported) == 1
    with Session(one) as session:
        session.get_one_entity(Lease, 1, ForUpdate)
        session.get_one_entity(Customer, 1, ForUpdate)
    assert questions(reported) == 3
    with Session(recording()) as session:
        session.get_one_entity(Order, 1, ForUpdate)
    assert questions(reported) == 4


def test_it_is_not_asked_for_a_snapshot(
    recording: Callable[[], sa.Engine], reported: list[str]
) -> None:
    with Session(recording()) as session:
        session.get_one_entity(Order, 1, LockOptions.SnapshotRead)
    assert questions(reported) == 0


def test_a_table_that_was_made_sound_can_be_locked(engine: sa.Engine, session: Session) -> None:
    with pytest.raises(LockNotSupported):
        session.get_entity(Old, 1, ForUpdate)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE lk_old ENGINE=InnoDB")
    assert session.get_one_entity(Old, 1, ForUpdate).id == 1


@pytest.fixture
def pooled(
    engine: sa.Engine,  # noqa: ARG001  # creates the tables
    make_engine: Callable[..., sa.Engine],
) -> sa.Engine:
    """Return an engine with one connection, on which a table was locked."""
    pooled = make_engine(pool_size=1, max_overflow=0)
    with Session(pooled) as session:
        session.get_one_entity(Sound, 1, ForUpdate)
        session.commit()
        session.scalars(sa.select(Sound).with_for_update()).all()
    return pooled


TAKES: dict[str, Callable[[LockingSession], Any]] = {
    "get_entity": lambda session: session.get_entity(Sound, 1, ForUpdate),
    "SharedRead": lambda session: session.get_entity(Sound, 1, SharedRead),
    "with_for_update": lambda session: session.scalars(sa.select(Sound).with_for_update()).all(),
    "of the table": lambda session: session.execute(
        sa.select(Sound.__table__).with_for_update()
    ).all(),
}
ALTER = "ALTER TABLE lk_sound ENGINE=MyISAM"


def _by_the_session(pooled: sa.Engine, _other: sa.Engine) -> None:
    with Session(pooled) as session:
        session.execute(sa.text(ALTER))


def _by_the_session_of_another_engine(_pooled: sa.Engine, other: sa.Engine) -> None:
    with Session(other) as session:
        session.connection().exec_driver_sql(f"/* kind */ {ALTER}")


def _by_a_connection(pooled: sa.Engine, _other: sa.Engine) -> None:
    with pooled.connect() as connection:
        connection.exec_driver_sql(ALTER, execution_options={"no_parameters": True})


def _by_ddl(_pooled: sa.Engine, other: sa.Engine) -> None:
    with other.connect() as connection:
        statement: Any = sa.DDL(ALTER)  # type: ignore[no-untyped-call]
        connection.execute(statement)


def _in_autocommit(_pooled: sa.Engine, other: sa.Engine) -> None:
    with other.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text(ALTER.lower()))


def _unseen(_pooled: sa.Engine, other: sa.Engine) -> None:
    """As from another process."""
    driver = other.raw_connection()
    driver.cursor().execute(ALTER)
    driver.close()


def _unseen_and_a_new_connection(pooled: sa.Engine, other: sa.Engine) -> None:
    _unseen(pooled, other)
    pooled.dispose()


SENDERS = [
    _by_the_session,
    _by_the_session_of_another_engine,
    _by_a_connection,
    _by_ddl,
    _in_autocommit,
    _unseen_and_a_new_connection,
]


@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
@pytest.mark.parametrize("alter", SENDERS)
def test_a_table_that_was_altered_is_refused(
    engine: sa.Engine,
    pooled: sa.Engine,
    alter: Callable[..., None],
    take: Callable[[LockingSession], Any],
) -> None:
    alter(pooled, engine)
    with (
        Session(pooled) as session,
        pytest.raises(LockNotSupported, match="'lk_sound' is stored by MyISAM"),
    ):
        take(session)


@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
def test_so_is_one_that_another_process_has_altered_a_minute_ago(
    engine: sa.Engine,
    pooled: sa.Engine,
    take: Callable[[LockingSession], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _unseen(pooled, engine)
    after = time.monotonic() + 61
    monkeypatch.setattr(table_answers, "time", SimpleNamespace(monotonic=lambda: after))
    with (
        Session(pooled) as session,
        pytest.raises(LockNotSupported, match="'lk_sound' is stored by MyISAM"),
    ):
        take(session)


def test_the_answer_while_ddl_runs_is_not_kept(engine: sa.Engine, pooled: sa.Engine) -> None:
    with engine.connect() as altering, Session(pooled) as session:
        altering.execute(sa.text("CREATE TEMPORARY TABLE lk_passing (id int)"))
        session.get_one_entity(Sound, 1, ForUpdate)
        session.commit()
        _unseen(pooled, engine)
        with pytest.raises(LockNotSupported):
            session.get_one_entity(Sound, 1, ForUpdate)


@pytest.mark.parametrize("poolclass", [sa.QueuePool, sa.NullPool])
def test_programs_without_ddl_ask_once(
    recording: Callable[..., sa.Engine], poolclass: type[sa.Pool], reported: list[str]
) -> None:
    own = recording(poolclass=poolclass)
    for _ in range(3):
        with Session(own) as session:
            session.execute(sa.text("SELECT 1"))
            session.execute(sa.text("UPDATE lk_order SET total = total"))
            session.rollback()
            session.get_one_entity(Order, 1, ForUpdate)
            session.execute(sa.text("SELECT 'created' AS altered"))
            session.commit()
            session.get_one_entity(Order, 1, ForUpdate)
    assert questions(reported) == 1
