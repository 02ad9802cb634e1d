"""SQLite with an ATTACHed file, which has its own write lock and is a schema of the connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sa_doclock import LockingSession, LockNotAvailable, LockNotSupported, LockOptions, claim_each
from tests.support.databases import Database
from tests.support.models import Order

pytestmark = pytest.mark.each_value

ForUpdate = LockOptions.ForUpdate


MakeEngine = Callable[..., sa.Engine]


class Base(DeclarativeBase):
    pass


class Book(Base):
    __tablename__ = "book"
    __table_args__ = (sa.CheckConstraint("id > 0"), {"schema": "books"})
    id: Mapped[int] = mapped_column(primary_key=True)


class Draft(Base):
    """A book, if a schema_translate_map maps it so."""

    __tablename__ = "book"
    id: Mapped[int] = mapped_column(primary_key=True)


MAP: dict[str, Any] = {"schema_translate_map": {None: "books"}}
KEYS = sa.select(Book.id).with_for_update()
TABLE: Any = Book.__table__
LOCKS: dict[str, Callable[[LockingSession], Any]] = {
    "by key": lambda session: session.get_entity(Book, 1, ForUpdate),
    "of a set": lambda session: session.scalars(session.entity_set(Book, ForUpdate)).all(),
    "adopted": lambda session: session.scalars(sa.select(Book).with_for_update()).all(),
    "of keys": lambda session: session.execute(KEYS).all(),
    "of a table": lambda session: session.execute(sa.select(TABLE).with_for_update()).all(),
    "within": lambda session: session.scalars(sa.select(Book).where(Book.id.in_(KEYS))).all(),
    "of a subquery": lambda session: session.execute(
        sa.select(sa.select(Book.id).subquery()).with_for_update()
    ).all(),
    "of a set, by a map": lambda session: session.scalars(
        session.entity_set(Draft, ForUpdate).execution_options(**MAP)
    ).all(),
    "adopted, by a map": lambda session: session.scalars(
        sa.select(Draft).with_for_update(), execution_options=MAP
    ).all(),
    "of keys, by a map": lambda session: session.execute(
        sa.select(Draft.id).with_for_update(), execution_options=MAP
    ).all(),
    "of the connection": lambda session: session.connection().execute(KEYS).all(),
}
BEGUN: dict[str, Callable[[LockingSession], Any]] = {
    "begins": lambda session: session.expire_all(),
    "after a read": lambda session: session.scalar(sa.select(Book.id)),
    "after BEGIN": lambda session: session.execute(sa.text("BEGIN")),
    "after a write": lambda session: session.execute(sa.text("PRAGMA user_version = 7")),
    "after a lock": lambda session: session.get_one_entity(Order, 1, ForUpdate),
}
taking = pytest.mark.parametrize("take", LOCKS.values(), ids=LOCKS)
begun = pytest.mark.parametrize("begin", BEGUN.values(), ids=BEGUN)


@pytest.fixture
def books(tmp_path: Path) -> Path:
    path = tmp_path / "books.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(
            "PRAGMA journal_mode = WAL; CREATE TABLE book (id INTEGER PRIMARY KEY);"
            "INSERT INTO book VALUES (1)"
        )
    connection.close()
    return path


@pytest.fixture
def attaching(engine: sa.Engine) -> Iterator[Callable[[str], LockingSession]]:
    """Return a function that makes a session with this file attached."""
    sessions: list[LockingSession] = []

    def attach(file: str, **options: Any) -> LockingSession:
        def connect() -> sqlite3.Connection:
            connection: sqlite3.Connection = sqlite3.connect(
                str(engine.url.database), uri=True, timeout=0, **options
            )
            sqlite3.Cursor(connection).execute("ATTACH ? AS books", (file,))
            return connection

        sessions.append(LockingSession(sa.create_engine(engine.url, creator=connect)))
        return sessions[-1]

    yield attach
    for session in sessions:
        session.close()
        session.get_bind().dispose()  # type: ignore[union-attr]


@pytest.mark.databases("sqlite")
@taking
@begun
def test_a_file_that_may_be_written_is_locked(
    attaching: Callable[..., LockingSession], books: Path, take: Any, begin: Any
) -> None:
    session = attaching(str(books))
    begin(session)
    take(session)
    other = sqlite3.connect(books, timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    session.rollback()
    other.execute("BEGIN IMMEDIATE")
    other.close()


@pytest.mark.databases("sqlite")
@taking
@begun
def test_one_that_may_be_only_read_is_refused(
    attaching: Callable[..., LockingSession], books: Path, take: Any, begin: Any
) -> None:
    session = attaching(f"file:{books}?mode=ro")
    begin(session)
    with pytest.raises(LockNotSupported, match="opened read-only"):
        take(session)
    session.rollback()
    assert session.scalar(sa.select(Book.id)) == 1
    session.rollback()
    assert session.get_entity(Book, 1, LockOptions.SnapshotRead)
    session.rollback()
    assert session.get_entity(Order, 1, ForUpdate)  # of a writable file


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("hook", [False, True])
def test_the_wait_for_it_is_limited(
    attaching: Callable[..., LockingSession], books: Path, hook: bool
) -> None:
    session = attaching(str(books), **({"isolation_level": None} if hook else {}))
    if hook:
        sa.event.listen(session.get_bind(), "begin", lambda one: one.exec_driver_sql("BEGIN"))
    with sqlite3.connect(books) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LockNotAvailable):
            session.get_entity(Book, 1, ForUpdate | LockOptions.NoWait)
    other.close()
    assert session.get_entity(Book, 1, ForUpdate)
    late = sqlite3.connect(books, timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        late.execute("BEGIN IMMEDIATE")
    late.close()


@pytest.mark.databases("sqlite")
def test_an_adopted_lock_takes_it_once(
    attaching: Callable[..., LockingSession], books: Path
) -> None:
    session, sent = attaching(str(books)), list[str]()
    sa.event.listen(
        session.get_bind(), "before_cursor_execute", lambda *given: sent.append(given[2])
    )
    LOCKS["adopted"](session)
    assert [one for one in sent if "books." in one and "SELECT" not in one] == [
        "PRAGMA books.incremental_vacuum(1)"
    ]


@pytest.mark.databases("sqlite")
def test_a_claim_of_it_is_refused(attaching: Callable[..., LockingSession], books: Path) -> None:
    engine = attaching(f"file:{books}?mode=ro").get_bind()
    with pytest.raises(LockNotSupported, match="opened read-only"):
        next(claim_each(lambda: LockingSession(engine), sa.select(Book))).__enter__()


# --------------------------------------------------------------------------------------------------
# A class mapped to a SQLite view can be locked, also in a transaction that has begun.

FOR_UPDATE = LockOptions.ForUpdate


class ViewBase(DeclarativeBase):
    """The tables of this file."""


class Account(ViewBase):
    __tablename__ = "vw_account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


class OpenAccount(ViewBase):
    """A view on it."""

    __tablename__ = "vw_open_account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


class Missing(ViewBase):
    """A class without a table."""

    __tablename__ = "vw_missing"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def session_factory(database: Database) -> sessionmaker[LockingSession]:
    """Return the session factory, with a table of one row and a view on it."""
    engine = database.engine(connect_args={"timeout": 0.1})
    with engine.begin() as connection:
        Account.__table__.create(connection)  # type: ignore[attr-defined]
        connection.execute(sa.insert(Account).values(id=1, balance=10))
        connection.exec_driver_sql("CREATE VIEW vw_open_account AS SELECT * FROM vw_account")
    return sessionmaker(engine, class_=LockingSession)


@pytest.mark.databases("sqlite", "sqlite-journal")
@pytest.mark.parametrize("writes", [False, True], ids=["after a read", "after a write"])
def test_a_view_is_locked_in_a_transaction_that_has_begun(
    session_factory: sessionmaker[LockingSession], writes: bool
) -> None:
    with session_factory() as session, session_factory() as other:
        if writes:
            session.add(Account(id=2, balance=20))
            session.flush()
        else:
            session.connection().exec_driver_sql("BEGIN")
            assert session.get(Account, 1) is not None
        assert session.get_one_entity(OpenAccount, 1, FOR_UPDATE).balance == 10
        assert session.held_locks == {(OpenAccount, (1,)): FOR_UPDATE}
        with pytest.raises(LockNotAvailable):
            other.get_entity(Account, 1, FOR_UPDATE)
        session.commit()
        assert other.get_one_entity(Account, 1, FOR_UPDATE).balance == 10


@pytest.mark.databases("sqlite", "sqlite-journal")
def test_a_table_that_is_not_there_is_the_database_s_own_error(
    session_factory: sessionmaker[LockingSession],
) -> None:
    with session_factory() as session:
        session.add(Account(id=2, balance=20))
        session.flush()
        with pytest.raises(sa.exc.OperationalError, match="no such table: vw_missing"):
            session.get_entity(Missing, 1, FOR_UPDATE)
