"""A statement of the program ends a transaction and begins another, unseen by the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sa_doclock import LockingSession, LockLost, LockOptions
from sa_doclock.dialects import strategy_for
from tests.integration.locking.steps import finds_held
from tests.support.databases import Database
from tests.support.models import Customer, Order

pytestmark = [
    pytest.mark.read_committed,
    pytest.mark.databases("sqlite", "postgresql", "mysql", "mariadb"),
    pytest.mark.filterwarnings("ignore:.*already deassociated:sqlalchemy.exc.SAWarning"),
]

Session = LockingSession
Run = Callable[..., list[Any]]
Way = Callable[[Session], object]
ForUpdate = LockOptions.ForUpdate
FIRST, SECOND = (Order, (1,)), (Order, (2,))
TOTALS = sa.select(Order.total).order_by(Order.id)
REFILL = (
    sa.update(Order).where(Order.id == 1).values(total=30),
    sa.update(Order).where(Order.id == 2).values(total=5),
)
BY_ANOTHER = sa.update(Order).where(Order.id == 1).values(total=50)


def text(*statements: str) -> Way:
    def way(session: Session) -> None:
        for one in statements:
            session.execute(sa.text(one)).close()

    return way


def ddl(sql: str) -> Any:
    make: Any = sa.DDL  # DDL has no types
    return make(sql)


def by_driver(*statements: str) -> Way:
    """Send these on a cursor of the driver."""

    def way(session: Session) -> None:
        cursor = session.connection().connection.cursor()
        for one in statements:
            cursor.execute(one)
            if cursor.description:
                cursor.fetchall()
        cursor.close()

    return way


def script(session: Session) -> None:
    driver: Any = session.connection().connection.driver_connection
    driver.executescript("BEGIN;")  # commits first


CALL = "CALL lk_begins_anew()"
IN_OTHER_WORDS: dict[str, Callable[[str], Way]] = {
    "text": text,
    "exec_driver_sql": lambda sql: lambda session: session.connection().exec_driver_sql(sql),
    "a connection that was asked for before": lambda sql: (
        lambda session: session.info["connection"].exec_driver_sql(sql)
    ),
    "columns": lambda sql: (
        lambda session: session.execute(sa.text(sql).columns(sa.column("id"))).close()
    ),
    "from_statement": lambda sql: (
        lambda session: session.execute(sa.select(Order).from_statement(sa.text(sql))).close()
    ),
    "Query": lambda sql: lambda session: session.query(Order).from_statement(sa.text(sql)).first(),
    "DDL": lambda sql: lambda session: session.execute(ddl(sql)),
    "driver": by_driver,
}
INNODB = {f"CALL by {name}": way(CALL) for name, way in IN_OTHER_WORDS.items()} | {
    "ANALYZE": text("ANALYZE TABLE lk_customer"),
    "OPTIMIZE": text("OPTIMIZE TABLE lk_customer"),
    "CHECK": text("CHECK TABLE lk_customer"),
    "REPAIR": text("REPAIR TABLE lk_customer"),
    "FLUSH": text("FLUSH TABLES"),
    "AND CHAIN": text("COMMIT AND CHAIN"),
    "ROLLBACK AND CHAIN": text("ROLLBACK WORK AND CHAIN"),
    "a prepared COMMIT": text("PREPARE lk FROM 'COMMIT'", "EXECUTE lk", "SELECT * FROM lk_order"),
    "a procedure that selects and commits": text("CALL lk_commits()"),
    "autocommit": text("SET autocommit = 1", "SET autocommit = 0"),
}
WAYS: dict[str, dict[str, Way]] = {
    "postgresql": {
        "AND CHAIN": text("COMMIT AND CHAIN"),
        "with a comment": text("/* on */ -- and on\n ROLLBACK TRANSACTION AND CHAIN"),
        "END": text("END AND CHAIN"),
        "ABORT": text("ABORT AND CHAIN"),
        "driver": by_driver("COMMIT", "BEGIN"),
        "two by the driver": by_driver("COMMIT; BEGIN"),
        "COMMIT and BEGIN": text("COMMIT", "BEGIN"),
    },
    "sqlite": {
        "COMMIT and BEGIN": text("COMMIT", "BEGIN"),
        "END and BEGIN": text("END", "BEGIN IMMEDIATE"),
        "driver": by_driver("ROLLBACK", "BEGIN"),
        "script": script,
    },
    "mysql": INNODB,
    "mariadb": INNODB,
}
ENDS: dict[str, Way] = {
    "COMMIT": text("COMMIT"),
    "by the driver": by_driver("ROLLBACK"),
    "DROP": text("DROP TABLE IF EXISTS lk_missing", "COMMIT"),
}
SOME = ("AND CHAIN", "ROLLBACK AND CHAIN", "COMMIT and BEGIN", "CALL by text")


@pytest.fixture(autouse=True)
def procedures(database: Database, elsewhere: Run) -> Iterator[None]:
    """Create procedures that end their caller's transaction."""
    bodies = {
        "lk_begins_anew": "BEGIN COMMIT; START TRANSACTION; SELECT * FROM lk_order; END",
        "lk_commits": "BEGIN SELECT 1; COMMIT; END",
    }
    if database.name not in {"mysql", "mariadb"}:
        bodies = {}
    for name, body in bodies.items():
        elsewhere(sa.text(f"DROP PROCEDURE IF EXISTS {name}"))
        elsewhere(sa.text(f"CREATE PROCEDURE {name}() {body}"))
    yield
    for name in bodies:
        elsewhere(sa.text(f"DROP PROCEDURE {name}"))


def lock_first(session: Session) -> Order:
    session.info["connection"] = session.connection()
    return session.get_one_entity(Order, 1, ForUpdate)


Each = Callable[..., Iterator[tuple[LockingSession, Way]]]


@pytest.fixture
def each(database: Database, session: Session, elsewhere: Run) -> Each:
    """Return each way for this database, with a separate session."""

    def each_way(*labels: str) -> Iterator[tuple[Session, Way]]:
        for label, way in WAYS[database.name].items():
            if labels and label not in labels:
                continue
            elsewhere(*REFILL)
            one = Session(session.get_bind())
            try:
                yield one, way
            except BaseException as error:
                error.add_note(label) if hasattr(error, "add_note") else print(label)
                raise
            one.close()

    return each_way


def test_nothing_is_flushed(each: Each, elsewhere: Run) -> None:
    for session, way in each():
        order = lock_first(session)
        way(session)
        order.total += 1
        with pytest.raises(LockLost, match="Order 1: "):
            session.flush()
        assert not session.held_locks
        with pytest.raises(LockLost):
            session.execute(BY_ANOTHER)
        session.rollback()
        elsewhere(BY_ANOTHER)
        with session.locked(Order, 1) as again:
            again.total += 1
        assert elsewhere(TOTALS) == [(51,), (5,)]


def test_what_the_driver_says_saves_questions_only(
    each: Each, session: Session, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = strategy_for(session.get_bind()).status
    for name in ("in_transaction", "has_open_transaction"):
        monkeypatch.setattr(status, name, lambda *_: None)
    monkeypatch.setitem(WAYS, database.name, {**WAYS[database.name], **ENDS})
    for one, way in each():
        order = lock_first(one)
        way(one)
        order.total += 1
        with pytest.raises(LockLost, match="Order 1: "):
            one.commit()


def test_the_next_lock_knows_it(each: Each, elsewhere: Run) -> None:
    for session, way in each(*SOME):
        lock_first(session)
        way(session)
        session.get_one_entity(Order, 2, ForUpdate).total = 6
        assert list(session.held_locks) == [SECOND]
        for save in (session.flush, session.commit):
            with pytest.raises(LockLost, match="Order 1: "):
                save()
        session.rollback()
        assert elsewhere(TOTALS) == [(30,), (5,)]


def test_after_a_rollback_the_next_transaction_is_not_refused(session: Session) -> None:
    write = sa.update(Customer).where(Customer.id == 1).values(name="Ann")
    session.get_one_entity(Order, 1, ForUpdate)
    session.connection().commit()
    with pytest.raises(LockLost):
        session.execute(write)
    session.rollback()
    session.execute(write)


def test_nothing_is_committed(each: Each, elsewhere: Run) -> None:
    for session, way in each(*SOME):
        lock_first(session)
        way(session)
        text("UPDATE lk_order SET total = 7 WHERE id = 2")(session)
        with pytest.raises(LockLost, match="Order 1: "):
            session.commit()
        session.rollback()
        assert elsewhere(TOTALS) == [(30,), (5,)]


def test_nor_with_a_savepoint_that_is_still_open(each: Each, elsewhere: Run) -> None:
    for session, way in each(*SOME):
        whole = session.begin()
        lock_first(session)
        way(session)
        text("UPDATE lk_order SET total = 7 WHERE id = 2")(session)
        session.begin_nested()
        with pytest.raises(LockLost, match="Order 1: "):
            whole.commit()
        session.rollback()
        assert elsewhere(TOTALS) == [(30,), (5,)]


@pytest.mark.parametrize("name", ["before_flush", "after_flush"])
def test_a_listener_of_the_last_flush(
    each: Each, elsewhere: Run, database: Database, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name == "before_flush":  # the flush begins another transaction
        monkeypatch.setitem(WAYS, database.name, {**WAYS[database.name], **ENDS})
    for session, way in each(*SOME, *ENDS):
        order = lock_first(session)
        sa.event.listen(session, name, partial(_call, way), once=True)
        order.total = 31
        with pytest.raises(LockLost, match="Order 1: "):
            Session.commit(session) if name == "before_flush" else _flush_and_commit(session)
        assert not session.held_locks
        session.rollback()
        # The listener's COMMIT saves the changes flushed before it.
        assert elsewhere(TOTALS)[1] == (5,) or name == "after_flush"


def _flush_and_commit(session: Session) -> None:
    session.get_one(Order, 2).total = 7  # after a flush
    session.commit()


@pytest.mark.parametrize("name", ["load", "refresh"])
def test_a_listener_within_the_lock_call(each: Each, elsewhere: Run, name: str) -> None:
    """The lock is granted, and no ledger has it yet."""
    for session, way in each(*SOME, "driver"):
        known = session.get(Order, 1) if name == "refresh" else None
        session.rollback()
        listener = partial(_call_of, way)
        sa.event.listen(Order, name, listener, once=True)
        try:
            order = session.get_one_entity(Order, 1, ForUpdate)
        finally:
            sa.event.remove(Order, name, listener)
        assert known is None or order is known
        elsewhere(BY_ANOTHER)
        order.total += 1
        with pytest.raises(LockLost, match="Order 1: "):
            session.commit()
        session.rollback()
        assert elsewhere(TOTALS)[0] == (50,)


def _call_of(way: Way, _order: Order, load: Any, *_: object) -> None:
    way(load.session)


def _call(way: Way, session: Session, *_: object) -> None:
    way(session)


KEEPING: dict[str, Way] = {
    "SELECT": text("SELECT 1"),
    "INSERT": text("INSERT INTO lk_customer (id, name) VALUES (9, 'Zoe')"),
    "driver": by_driver("SELECT 1"),
    "several": text("SELECT 1", "SELECT * FROM lk_order", "SELECT 2"),
}


@pytest.mark.parametrize("keep", KEEPING)
def test_the_same_transaction(session: Session, other: Session, elsewhere: Run, keep: str) -> None:
    order = lock_first(session)
    for _ in range(2):
        KEEPING[keep](session) if keep != "INSERT" else text("SELECT 3")(session)
        assert list(session.held_locks) == [FIRST]
        with session.begin_nested() as savepoint:
            KEEPING["SELECT"](session)
            session.get_one(Customer, 1)
            order.total += 1
            session.flush()
            savepoint.rollback()
        with session.begin_nested():
            KEEPING[keep](session) if keep != "INSERT" else text("SELECT 3")(session)
        assert list(session.held_locks) == [FIRST]
    KEEPING[keep](session)
    text("SAVEPOINT mine")(session)
    text("SELECT 1")(session)
    order.total = 31
    session.flush()
    text("SELECT 1", "ROLLBACK TO SAVEPOINT mine", "SELECT 1")(session)
    session.refresh(order)
    assert order.total == 30
    assert finds_held()(other)
    order.total = 32
    session.commit()
    assert elsewhere(TOTALS) == [(32,), (5,)]


def test_a_statement_that_fails_alone(session: Session, elsewhere: Run) -> None:
    order = lock_first(session)
    with pytest.raises(DBAPIError), session.begin_nested():
        text("SELECT * FROM lk_missing")(session)
    assert list(session.held_locks) == [FIRST]
    order.total = 31
    session.commit()
    assert elsewhere(TOTALS) == [(31,), (5,)]


def test_several_statements_cost_two_questions(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = count_questions(session, monkeypatch)
    order = session.get_one_entity(Order, 1, ForUpdate)
    text("SELECT 1", "SELECT 2")(session)
    assert asked == ["mark_transaction"]
    order.total = 31
    session.flush()
    session.get_one_entity(Order, 2, ForUpdate)
    session.commit()
    assert asked == ["mark_transaction", "has_mark"]


def test_a_program_without_foreign_statements_is_asked_nothing(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = count_questions(session, monkeypatch)
    session.connection()
    text("SELECT 1")(session)  # before the lock
    order = session.get_one_entity(Order, 1, ForUpdate)
    session.get_one_entity(Order, 2, ForUpdate, lock_timeout=2.5)
    with session.begin_nested():
        order.total = 31
    session.execute(sa.update(Order).where(Order.id == 2).values(total=6))
    session.execute(sa.select(Order).from_statement(sa.select(Order)))
    session.execute(sa.union_all(sa.select(Order.id), sa.select(Order.id))).all()
    session.get_one_entity(Order, 1, ForUpdate)
    assert len(session.held_locks) == 2
    session.commit()
    assert not asked


def test_a_lent_connection_costs_nothing_more(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.connect() as connection, Session(connection) as session:
        asked = count_questions(session, monkeypatch)
        session.get_one_entity(Order, 1, ForUpdate, lock_timeout=2.5).total = 31
        connection.execute(sa.select(Order.id))
        session.get_one_entity(Order, 2, ForUpdate, lock_timeout=2.5)
        session.commit()
        assert not asked


def test_two_sessions_on_one_connection(engine: sa.Engine, elsewhere: Run) -> None:
    with engine.connect() as connection:
        connection.begin()
        one, two = (Session(connection, join_transaction_mode="rollback_only") for _ in range(2))
        one.get_one_entity(Order, 1, ForUpdate).total = 31
        two.get_one_entity(Order, 2, ForUpdate).total = 6
        connection.execute(sa.text("SELECT 1"))
        one.commit()
        two.commit()
        connection.commit()
        one.close()
        two.close()
    assert elsewhere(TOTALS) == [(31,), (6,)]


@pytest.mark.databases("sqlite", "mysql", "mariadb")
def test_a_mark_that_another_session_has_released_is_set_anew(
    engine: sa.Engine, database: Database
) -> None:
    with engine.connect() as connection:
        connection.begin()
        one, two = (Session(connection, join_transaction_mode="rollback_only") for _ in range(2))
        one.get_one_entity(Order, 1, ForUpdate)
        two.get_one_entity(Order, 2, ForUpdate)
        for session in (one, two):
            session.execute(sa.text("SELECT 1"))
        assert two.held_locks  # releases the mark of both
        begin = "BEGIN IMMEDIATE" if database.name == "sqlite" else "BEGIN"
        by_driver("COMMIT", begin)(one)
        assert not one.held_locks
        one.close()
        two.close()


@pytest.mark.parametrize(
    ("savepoint", "back"),
    [
        ("/* mine */ SAVEPOINT p1", "/* mine */ ROLLBACK TO SAVEPOINT p1"),
        ('SAVEPOINT "my point"', 'ROLLBACK TO SAVEPOINT "my point"'),
    ],
    ids=["a comment", "a quoted name"],
)
def test_savepoints_of_the_program_go_on(
    session: Session, database: Database, savepoint: str, back: str
) -> None:
    if database.name in ("mysql", "mariadb"):
        savepoint, back = savepoint.replace('"', "`"), back.replace('"', "`")
    order = session.get_one_entity(Order, 1, ForUpdate)
    session.execute(sa.text("SELECT 1")).close()
    session.execute(sa.text(savepoint))
    order.total = 99
    session.flush()
    session.execute(sa.text(back))
    session.refresh(order)
    assert order.total == 30
    assert FIRST in session.held_locks


def by_connection(session: Session) -> Way:
    session.info["savepoint"] = session.connection().begin_nested()
    return lambda session: session.info["savepoint"].rollback()


def by_text(back: str) -> Callable[[Session], Way]:
    def begin(session: Session) -> Way:
        text("SAVEPOINT mine")(session)
        return text(back)

    return begin


BACK: dict[str, Callable[[Session], Way]] = {
    "a comment": by_text("ROLLBACK TO SAVEPOINT mine /* back */"),
    "a line": by_text("ROLLBACK TO SAVEPOINT mine; -- back"),
    "of a Connection": by_connection,
}


@pytest.mark.parametrize("begin", BACK.values(), ids=BACK)
def test_a_rollback_with_a_comment_behind_it_gives_up_what_was_locked_since(
    database: Database, begin: Callable[[Session], Way], elsewhere: Run
) -> None:
    engine = database.engine()

    @sa.event.listens_for(engine, "before_cursor_execute", retval=True)
    def add_comment(
        _connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any
    ) -> Any:
        return f"{statement} /*traceparent='00'*/", parameters

    with Session(engine) as session:
        session.get_one_entity(Order, 2, ForUpdate)
        back = begin(session)
        session.get_one_entity(Order, 1, ForUpdate)
        back(session)
        assert list(session.held_locks) == [SECOND]
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        assert list(session.held_locks) == [SECOND, FIRST]
        session.commit()
    engine.dispose()
    assert elsewhere(TOTALS)[0] == (31,)


UNSEEN: dict[str, Way] = {
    "by the driver": by_driver("ROLLBACK TO SAVEPOINT mine"),
    "a comment within": text("ROLLBACK /* back */ TO SAVEPOINT mine"),
}


@pytest.mark.parametrize("seen", [True, False], ids=["a seen savepoint", "an unseen savepoint"])
@pytest.mark.parametrize("back", UNSEEN.values(), ids=UNSEEN)
def test_after_a_rollback_to_a_savepoint_that_was_not_seen_no_lock_is_believed(
    session: Session, other: Session, elsewhere: Run, back: Way, *, seen: bool
) -> None:
    """PostgreSQL releases the lock, and continues the transaction."""
    (text if seen else by_driver)("SAVEPOINT mine")(session)
    order = session.get_one_entity(Order, 1, ForUpdate)
    back(session)
    assert not session.held_locks
    order.total = 31
    with pytest.raises(LockLost):
        session.flush()
    session.rollback()
    other.get_one_entity(Order, 1, ForUpdate).total = 7
    other.commit()
    assert elsewhere(TOTALS)[0] == (7,)


def count_questions(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the name of each query about the transaction."""
    asked: list[str] = []
    marks = strategy_for(session.get_bind()).marks
    for name in ("mark_transaction", "has_mark"):
        own = getattr(marks, name)

        def ask(*arguments: Any, own: Any = own, name: str = name) -> Any:
            asked.append(name)
            return own(*arguments)

        monkeypatch.setattr(marks, name, ask)
    return asked
