"""PostgreSQL: views, copies and foreign tables whose rows FOR UPDATE silently does not lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, registry

from sa_doclock import LockingSession, LockLost, LockNotAvailable, LockNotSupported, LockOptions
from sa_doclock.dialects.postgresql import lockable_rows
from tests.support.databases import Database
from tests.support.waits import wait_until

pytestmark = pytest.mark.databases("postgresql")
ForUpdate = LockOptions.ForUpdate


class Base(DeclarativeBase):
    pass


class Doc(Base):
    __tablename__ = "lr_doc"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]


class Old(Base):
    __tablename__ = "lr_old"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]


class Relation:
    """A row of a relation that a test creates."""

    id: int
    total: int


DOCS = "SELECT id, total FROM lr_doc"
BOTH = f"{DOCS} UNION ALL SELECT * FROM lr_old"
UNLOCKED = {
    "UNION": [f"CREATE VIEW lr AS {BOTH}"],
    "a view on a UNION": [
        f"CREATE VIEW lr_both AS {BOTH}",
        "CREATE VIEW lr AS SELECT * FROM lr_both",
    ],
    "CTE": [f"CREATE VIEW lr AS WITH found AS ({DOCS}) SELECT * FROM found"],
    "a UNION in the FROM": [f"CREATE VIEW lr AS SELECT * FROM ({BOTH}) found"],
    "a UNION in a join": [
        f"CREATE VIEW lr AS SELECT * FROM ({BOTH}) found JOIN lr_old USING (id, total)"
    ],
    "a UNION beside a condition": [
        f"CREATE VIEW lr AS SELECT * FROM ({BOTH}) found WHERE id IN (SELECT id FROM lr_old)"
    ],
    "VALUES": ["CREATE VIEW lr AS SELECT * FROM (VALUES (1, 10)) found (id, total)"],
    "a function": [
        f"CREATE FUNCTION lr_found() RETURNS SETOF lr_doc LANGUAGE sql STABLE AS '{DOCS}'",
        "CREATE VIEW lr AS SELECT id, total FROM lr_found()",
    ],
    "subqueries among the columns": [
        "CREATE VIEW lr AS SELECT 1 AS id, (SELECT max(total) FROM lr_doc WHERE id = 1) AS total"
    ],
    "an INSTEAD trigger": [
        f"CREATE VIEW lr AS {BOTH}",
        "CREATE FUNCTION lr_change() RETURNS trigger LANGUAGE plpgsql AS 'begin return new; end'",
        "CREATE TRIGGER lr_instead INSTEAD OF UPDATE ON lr FOR EACH ROW EXECUTE FUNCTION lr_change()",
    ],
    "an INSTEAD rule": [
        f"CREATE VIEW lr AS {BOTH}",
        "CREATE RULE lr_rule AS ON UPDATE TO lr DO INSTEAD UPDATE lr_doc SET total = new.total",
    ],
    "GROUP BY": ["CREATE VIEW lr AS SELECT id, sum(total)::int total FROM lr_doc GROUP BY id"],
    "a materialized view": [f"CREATE MATERIALIZED VIEW lr AS {DOCS}"],
    "a foreign table": [
        "CREATE FOREIGN DATA WRAPPER lr_wrapper",
        "CREATE SERVER lr_server FOREIGN DATA WRAPPER lr_wrapper",
        "CREATE FOREIGN TABLE lr (id int, total int) SERVER lr_server",
    ],
    "a table with a partition elsewhere": [
        "CREATE FOREIGN DATA WRAPPER lr_wrapper",
        "CREATE SERVER lr_server FOREIGN DATA WRAPPER lr_wrapper",
        "CREATE TABLE lr (id int, total int) PARTITION BY LIST (id)",
        "CREATE TABLE lr_near PARTITION OF lr FOR VALUES IN (1)",
        "CREATE FOREIGN TABLE lr_far PARTITION OF lr FOR VALUES IN (2) SERVER lr_server",
        "INSERT INTO lr VALUES (1, 10)",
    ],
}
LOCKED = {
    "a table": ["CREATE TABLE lr (id int PRIMARY KEY, total int)", "INSERT INTO lr VALUES (1, 10)"],
    "a partitioned table": [
        "CREATE TABLE lr (id int PRIMARY KEY, total int) PARTITION BY LIST (id)",
        "CREATE TABLE lr_near PARTITION OF lr FOR VALUES IN (1)",
        "INSERT INTO lr VALUES (1, 10)",
    ],
    "a table with heirs": [
        "CREATE TABLE lr (id int PRIMARY KEY, total int)",
        "CREATE TABLE lr_heir () INHERITS (lr)",
        "INSERT INTO lr_heir VALUES (1, 10)",
    ],
    "a view": [f"CREATE VIEW lr AS {DOCS} WHERE total > 0"],
    "a view on a view": [
        f"CREATE VIEW lr_below WITH (security_barrier) AS {DOCS}",
        "CREATE VIEW lr AS SELECT * FROM lr_below",
    ],
    "a view with a condition on another table": [
        f"CREATE VIEW lr AS {DOCS} WHERE id NOT IN (SELECT id FROM lr_old)"
    ],
    "a view over a join": [
        "CREATE VIEW lr AS SELECT id, total FROM lr_doc JOIN lr_old USING (id, total)",
        "INSERT INTO lr_old VALUES (1, 10)",
    ],
    "a view with a time zone": [
        f"CREATE VIEW lr AS {DOCS} WHERE now()::timestamp(0) with time zone > '2000-01-01'"
    ],
    "a view with LIMIT": [f"CREATE VIEW lr AS {DOCS} ORDER BY id LIMIT 5"],
    "a view with a subquery": [f"CREATE VIEW lr AS SELECT * FROM ({DOCS} LIMIT 5) found"],
    "a view with an INSTEAD rule": [
        f"CREATE VIEW lr AS {DOCS}",
        "CREATE RULE lr_rule AS ON UPDATE TO lr DO INSTEAD UPDATE lr_doc SET total = new.total",
    ],
    "a temporary table": [
        "CREATE TEMPORARY TABLE lr (id int PRIMARY KEY, total int)",
        "INSERT INTO lr VALUES (1, 10)",
    ],
}
Take = Callable[[LockingSession], Any]
TAKES: dict[str, Take] = {
    "get_entity": lambda session: session.get_entity(Relation, 1, ForUpdate),
    "SharedRead": lambda session: session.get_entity(Relation, 1, LockOptions.SharedRead),
    "entity_set": lambda session: session.scalars(session.entity_set(Relation, ForUpdate)).all(),
    "with_for_update": lambda session: session.scalars(sa.select(Relation).with_for_update()).all(),
    "within a statement": lambda session: session.scalars(
        sa.select(Doc).where(Doc.id.in_(sa.select(Relation.__table__.c.id).with_for_update()))  # type: ignore[attr-defined]
    ).all(),
}


@pytest.fixture
def engine(database: Database) -> Iterator[sa.Engine]:
    """Return an engine with the relations on its one connection, which rolls back their rows."""
    database.create(Base.metadata)
    engine = database.engine(poolclass=sa.StaticPool)
    own = registry()
    table = sa.Table(
        "lr",
        own.metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("total", sa.Integer),
    )
    own.map_imperatively(Relation, table)
    yield engine
    own.dispose()
    engine.dispose()


def _session(engine: sa.Engine, statements: list[str]) -> LockingSession:
    session = LockingSession(engine)
    for statement in ("INSERT INTO lr_doc VALUES (1, 10)", *statements):
        session.connection().exec_driver_sql(statement)
    return session


@pytest.mark.each_value
@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
@pytest.mark.parametrize("statements", UNLOCKED.values(), ids=UNLOCKED)
def test_it_is_refused(engine: sa.Engine, statements: list[str], take: Take) -> None:
    with _session(engine, statements) as session:
        with pytest.raises(LockNotSupported, match=r"'lr|cannot lock the rows"):
            take(session)
        assert not session.held_locks


@pytest.mark.each_value
@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
@pytest.mark.parametrize("statements", LOCKED.values(), ids=LOCKED)
def test_it_is_locked(engine: sa.Engine, statements: list[str], take: Take) -> None:
    with _session(engine, statements) as session:
        take(session)
        table = "lr_doc" if "VIEW" in str(statements) else "lr"
        # A row stores its own lock.
        locked = f"SELECT xmax::text <> '0' FROM {table}"
        assert session.connection().exec_driver_sql(locked).scalar_one()


def test_a_table_is_asked_about_once(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask: Any = lockable_rows.ask_driver

    def ask_driver(connection: sa.Connection, statement: str, **parameters: Any) -> Any:
        asked.append(f"{parameters['name']}, by {statement.split(maxsplit=1)[0]}")
        return ask(connection, statement, **parameters)

    monkeypatch.setattr(lockable_rows, "ask_driver", ask_driver)
    with _session(engine, LOCKED["a temporary table"]) as session:
        session.commit()
        for take in TAKES.values():
            take(session)
    assert asked == ["lr, by SELECT"]


@pytest.fixture
def swap(database: Database) -> Iterator[Callable[[str], None]]:
    """Return a function that replaces the table ``lr`` on another engine, in one transaction."""
    others = database.engine()

    def replace(*statements: str) -> None:
        with others.begin() as connection:
            kind = connection.exec_driver_sql(
                "SELECT relkind::text FROM pg_class WHERE oid = to_regclass('lr')"
            ).scalar()
            if kind:
                connection.exec_driver_sql(f"DROP {'VIEW' if kind == 'v' else 'TABLE'} lr")
            for statement in statements:
                connection.exec_driver_sql(statement)

    database.create(Base.metadata)
    replace(*LOCKED["a table"])
    yield replace
    replace()
    others.dispose()


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
def test_a_table_that_becomes_a_view_is_refused(
    make_engine: Callable[..., sa.Engine], swap: Callable[..., None], take: Take
) -> None:
    with LockingSession(make_engine()) as session:
        take(session)
        session.commit()
        swap(*UNLOCKED["UNION"])
        with pytest.raises(LockNotSupported, match="'lr'"):
            take(session)


@pytest.mark.usefixtures("engine")
def test_an_answer_in_front_of_the_commit_of_ddl_is_not_kept(
    make_engine: Callable[..., sa.Engine], swap: Callable[..., None]
) -> None:
    swap(*LOCKED["a table"])
    own = make_engine()
    with LockingSession(own) as session, own.connect() as other:
        other.exec_driver_sql("DROP TABLE lr")
        other.exec_driver_sql("CREATE VIEW lr AS SELECT 1 AS id, 2 AS total")
        with pytest.raises(LockNotAvailable):  # queried the old table
            session.get_entity(Relation, 1, ForUpdate, lock_timeout=0.1)
        session.rollback()
        other.commit()
        with pytest.raises(LockNotSupported, match="'lr'"):
            session.get_entity(Relation, 1, ForUpdate)


def test_why_the_server_has_ended_the_transaction_is_told(database: Database) -> None:
    database.create(Base.metadata)
    with LockingSession(database.engine()) as session:
        session.add(Doc(id=1, total=10))
        session.commit()
        session.get_entity(Doc, 1, ForUpdate)
        # The server reports the reason in answer to the next statement.
        setting = "SET LOCAL idle_in_transaction_session_timeout = 100"
        own = sa.text("SELECT count(*) FROM pg_stat_activity WHERE pid = :own")
        pid = session.connection().scalar(sa.func.pg_backend_pid().select())
        session.connection().exec_driver_sql(setting)
        with database.engine(isolation_level="AUTOCOMMIT").connect() as other:
            wait_until(lambda: other.scalar(own, {"own": pid}) == 0)
        with pytest.raises(LockLost, match="took longer than its limit"):
            session.get_entity(Old, 1, ForUpdate)


@pytest.fixture
def held_view(database: Database) -> Iterator[sa.Engine]:
    """Return an engine, while other work holds a view's table as DDL does."""
    database.create(Base.metadata)
    engine = database.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP VIEW IF EXISTS lr_seen")
        connection.exec_driver_sql(f"CREATE VIEW lr_seen AS {DOCS}")
    with engine.begin() as other:
        other.exec_driver_sql("LOCK TABLE lr_doc IN ACCESS EXCLUSIVE MODE")
        yield engine
        other.exec_driver_sql("DROP VIEW lr_seen")
    engine.dispose()


class Seen(Base):
    __table__ = sa.Table(
        "lr_seen",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("total", sa.Integer),
    )


@pytest.mark.parametrize(
    "setting", ["", "SET LOCAL lock_timeout = 100"], ids=["ours", "the server's"]
)
def test_the_question_waits_no_longer_than_the_lock(held_view: sa.Engine, setting: str) -> None:
    with LockingSession(held_view) as session:
        session.connection().exec_driver_sql("SET LOCAL statement_timeout = '5s'")
        if setting:
            session.connection().exec_driver_sql(setting)
        with pytest.raises(LockNotAvailable, match="Seen 1 FOR UPDATE on postgresql: not granted"):
            session.get_entity(Seen, 1, ForUpdate, lock_timeout=None if setting else 0.1)


def test_an_error_of_the_question_is_that_of_the_lock(engine: sa.Engine) -> None:
    statements = [*LOCKED["a view"], "SET LOCAL ROLE pg_monitor"]
    with _session(engine, statements) as session, pytest.raises(sa.exc.DBAPIError, match="denied"):
        session.get_entity(Relation, 1, ForUpdate)


def test_what_was_missing_is_asked_about_again(engine: sa.Engine) -> None:
    with _session(engine, []) as session, pytest.raises(sa.exc.DBAPIError, match="lr"):
        session.get_entity(Relation, 1, ForUpdate)
    with _session(engine, UNLOCKED["UNION"]) as session, pytest.raises(LockNotSupported):
        session.get_entity(Relation, 1, ForUpdate)
