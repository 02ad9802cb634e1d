"""The README's table: each mistake, with a plain Session and with a LockingSession."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy import ForeignKey
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    joinedload,
    mapped_column,
    relationship,
    sessionmaker,
)

from sa_doclock import (
    LockingSession,
    LockNotSupported,
    LockOptions,
    LockOrderViolation,
    LockUpgradeRefused,
    UnlockedWrite,
    document,
    with_lock,
)
from tests.support.actors import PATIENCE, Actor
from tests.support.databases import Database
from tests.support.waits import wait_until_blocked

# --------------------------------------------------------------------------------------------------
# A declared order with lines, and a document that comes before it in the lock order.


class Base(DeclarativeBase):
    pass


@document
class Order(Base):
    __tablename__ = "ms_order"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]
    lines: Mapped[list[Line]] = relationship(
        back_populates="order", cascade="all, delete-orphan", order_by="Line.id"
    )


class Line(Base):
    __tablename__ = "ms_line"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    order_id: Mapped[int] = mapped_column(ForeignKey("ms_order.id"))
    value: Mapped[int]
    order: Mapped[Order] = relationship(back_populates="lines")


@document
class Customer(Base):
    __tablename__ = "ms_customer"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    orders: Mapped[int]


ORDER_1 = (30, [10, 20])
"""Order 1 as every test finds it: its total, and the values of its lines."""


def fill(connection: sa.Connection) -> None:
    """Replace all rows of the tables."""
    for table in reversed(Base.metadata.sorted_tables):
        connection.execute(table.delete())
    connection.execute(sa.insert(Customer), [{"id": 1, "orders": 2}])
    connection.execute(sa.insert(Order), [{"id": 1, "total": 30}, {"id": 2, "total": 5}])
    lines = [(1, 1, 10), (2, 1, 20), (3, 2, 5)]
    connection.execute(
        sa.insert(Line), [{"id": i, "order_id": order, "value": v} for i, order, v in lines]
    )


# --------------------------------------------------------------------------------------------------
# Each mistake, with plain sessions and with locking sessions.

Found = tuple[int, list[int]]


@pytest.fixture
def engine(database: Database) -> sa.Engine:
    """Return an engine whose default level allows a lock after a read, with long waits."""
    patient = {"connect_args": {"timeout": 60}} if database.name == "sqlite" else {}
    level = {} if database.name == "sqlite" else {"isolation_level": "READ COMMITTED"}
    engine = database.engine(**patient, **level)
    database.create(Base.metadata)
    with engine.begin() as connection:
        fill(connection)
    return engine


@pytest.fixture
def session_factory(engine: sa.Engine) -> sessionmaker[LockingSession]:
    """Return the factory for sa_doclock's sessions, including those of alice and bob."""
    return sessionmaker(engine, class_=LockingSession)


@pytest.fixture
def locking(session_factory: Callable[[], LockingSession]) -> Iterator[LockingSession]:
    with session_factory() as session:
        yield session


@pytest.fixture
def plain(engine: sa.Engine) -> Iterator[Session]:
    """Open a plain session, for the mistake."""
    with Session(engine) as session:
        yield session


@pytest.fixture
def stored(engine: sa.Engine) -> Callable[[int], Found]:
    """Return a function that reads an order and its lines, as committed."""

    def read(ident: int) -> Found:
        with engine.connect() as connection:
            total = connection.execute(sa.select(Order.total).where(Order.id == ident)).scalar_one()
            values = sa.select(Line.value).where(Line.order_id == ident).order_by(Line.id)
            return total, list(connection.execute(values).scalars())

    return read


@pytest.fixture
def meanwhile(engine: sa.Engine) -> Callable[[Callable[[Session], object]], None]:
    """Return a function that runs and commits another person's change."""

    def do(act: Callable[[Session], object]) -> None:
        with Session(engine) as session:
            act(session)
            session.commit()

    return do


@pytest.fixture
def plain_actors(
    database: Database, engine: sa.Engine
) -> Iterator[tuple[Actor[Session], Actor[Session]]]:
    """Add two actors with plain sessions."""
    made: list[Actor[Any]] = [
        Actor(f"plain {n}", lambda: Session(engine), database) for n in (1, 2)
    ]
    yield made[0], made[1]
    for actor in made:
        actor.leave()
    for actor in made:
        actor.join()


# --------------------------------------------------------------------------------------------------
# The tests.

ForUpdate = LockOptions.ForUpdate
Meanwhile = Callable[[Callable[[Session], object]], None]
Stored = Callable[[int], tuple[int, list[int]]]


def add_ten(session: Session) -> None:
    """Add ten to the first line of order 1, and update the total."""
    order = session.get_one(Order, 1)
    order.lines[0].value += 10
    order.total = sum(line.value for line in order.lines)


def test_the_lock_is_forgotten(
    plain: Session, locking: LockingSession, meanwhile: Meanwhile, stored: Stored
) -> None:
    order = plain.get_one(Order, 1)
    total = order.total
    plain.commit()
    meanwhile(add_ten)
    order.total = total + 1
    plain.commit()
    assert stored(1) == (31, [20, 20])  # ten are lost

    mine = locking.get_one(Order, 1)
    mine.total += 1
    with pytest.raises(UnlockedWrite, match="Order 1 would be changed in 'total'") as caught:
        locking.commit()
    assert (caught.value.entity, caught.value.ident) == (Order, 1)
    locking.rollback()
    assert stored(1) == (31, [20, 20])


def test_a_detail_is_locked_in_place_of_its_header(
    plain: Session, locking: LockingSession, meanwhile: Meanwhile, stored: Stored
) -> None:
    plain.get_one(Line, 2)
    total = plain.get_one(Order, 1).total
    plain.commit()

    def change_line_1(session: Session) -> None:
        session.get_one(Line, 1, with_for_update=True).value += 10
        session.get_one(Order, 1).total += 10

    meanwhile(change_line_1)
    plain.get_one(Line, 2, with_for_update=True).value += 1
    plain.get_one(Order, 1).total = total + 1
    plain.commit()
    assert stored(1) == (31, [20, 21])

    line = locking.get_one_entity(Line, 2, ForUpdate)
    line.value += 1
    with pytest.raises(UnlockedWrite, match=r"session.get_entity\(Order, 1, LockOptions.ForUpdate"):
        locking.flush()


BULK: list[Callable[[], sa.Executable]] = [
    lambda: sa.update(Line).where(Line.value == 10).values(value=11),
    lambda: sa.delete(Line).where(Line.value == 10),
    lambda: sa.insert(Line).values(id=9, order_id=1, value=1),
]


@pytest.mark.parametrize("made", BULK, ids=["update", "delete", "insert"])
def test_a_bulk_statement_goes_past_the_lock(
    plain: Session,
    locking: LockingSession,
    stored: Stored,
    made: Callable[[], Any],
    session_factory: Callable[[], LockingSession],
) -> None:
    with pytest.raises(UnlockedWrite, match="Line rows would be") as caught:
        locking.execute(made())
    assert (caught.value.entity, caught.value.ident) == (Order, 1)
    assert stored(1) == ORDER_1
    locking.rollback()

    plain.execute(made())
    plain.commit()
    total, values = stored(1)
    assert total != sum(values)
    with session_factory() as holder, holder.locked(Order, 1) as order:  # so it succeeds
        holder.execute(sa.delete(Line).where(Line.order_id == 1, Line.value < 20))
        holder.expire(order)
        order.total = sum(line.value for line in order.lines)
    assert stored(1) == (20, [20])


def test_a_line_moves_to_an_order_that_is_not_locked(
    plain: Session, locking: LockingSession, stored: Stored
) -> None:
    def move(session: Session) -> None:
        line, order = session.get_one(Line, 1), session.get_one(Order, 1)
        line.order = session.get_one(Order, 2)
        order.total = 20

    plain.get_one(Order, 1, with_for_update=True)
    move(plain)
    plain.commit()
    assert stored(2) == (5, [10, 5])  # the total is wrong
    with Session(plain.get_bind()) as other:  # and back
        other.get_one(Line, 1).order_id = 1
        other.commit()

    kept = locking.get_one_entity(Order, 1, ForUpdate)
    move(locking)
    with pytest.raises(UnlockedWrite) as caught:
        locking.flush()
    assert caught.value.ident == 2
    locking.rollback()
    assert kept is locking.get_one_entity(Order, 1, ForUpdate)
    assert stored(2) == (5, [5])


def test_a_savepoint_takes_the_lock_along(
    plain: Session, locking: LockingSession, session_factory: Callable[[], LockingSession]
) -> None:
    locking.connection()
    savepoint = locking.begin_nested()
    order = locking.get_one_entity(Order, 1, ForUpdate)
    savepoint.rollback()
    order.total += 1
    with pytest.raises(UnlockedWrite):
        locking.flush()
    locking.refresh(order)
    assert locking.get_one_entity(Order, 1, ForUpdate) is order
    order.total += 1
    locking.flush()
    locking.rollback()

    if plain.get_bind().dialect.name == "postgresql":  # there the lock is really gone
        plain.connection()
        savepoint = plain.begin_nested()
        kept = plain.get_one(Order, 1, with_for_update=True)
        savepoint.rollback()
        with session_factory() as other:
            assert other.get_entity(Order, 1, ForUpdate | LockOptions.NoWait)
        assert kept


# --------------------------------------------------------------------------------------------------
# The program uses values that it read before the lock.

LOCK = sa.select(Order).where(Order.id == 1).with_for_update(of=Order)


def test_an_object_that_was_read_before_the_lock(
    plain: Session, locking: LockingSession, meanwhile: Meanwhile, stored: Stored
) -> None:
    seen = [session.get_one(Order, 1) for session in (plain, locking)]
    assert [order.total for order in seen] == [30, 30]
    meanwhile(add_ten)
    order = plain.scalars(LOCK).one()
    order.total += 1
    plain.commit()
    assert stored(1) == (31, [20, 20])  # ten are lost

    meanwhile(lambda session: setattr(session.get_one(Order, 1), "total", 40))
    with locking.locked(Order, 1) as mine:
        assert mine is seen[1]
        mine.total += 1
    assert stored(1) == (41, [20, 20])


def test_lines_that_were_read_before_the_lock(
    plain: Session, locking: LockingSession, meanwhile: Meanwhile
) -> None:
    lines = [session.get_one(Order, 1).lines[0] for session in (plain, locking)]
    assert [line.value for line in lines] == [10, 10]
    meanwhile(add_ten)
    plain.scalars(LOCK, execution_options={"populate_existing": True}).one()
    assert lines[0].value == 10
    plain.rollback()
    locking.get_one_entity(Order, 1, ForUpdate)
    assert lines[1].value == 20


@pytest.mark.databases("postgresql")
def test_lock_and_lines_in_one_statement(
    alice: Actor[LockingSession],
    plain_actors: tuple[Actor[Session], Actor[Session]],
) -> None:
    reader, _ = plain_actors
    alice.does(lambda session: session.get_entity(Order, 1, ForUpdate))
    alice.does(add_ten)
    alice.does(lambda session: session.flush())

    def read(session: Session) -> tuple[int, int]:
        order = session.scalars(LOCK.options(joinedload(Order.lines))).unique().one()
        return order.total, sum(line.value for line in order.lines)

    step = reader.starts(read)
    wait_until_blocked(waiter=reader, holder=alice, step=step)
    alice.does(lambda session: session.save_changes())
    assert step.result() == (40, 30)


@pytest.mark.not_databases("postgresql")
def test_lock_and_lines_in_one_statement_is_refused_everywhere(locking: LockingSession) -> None:
    _refuses(locking)


@pytest.mark.databases("postgresql")
def test_lock_and_lines_in_one_statement_is_refused_there_too(locking: LockingSession) -> None:
    _refuses(locking)


def _refuses(locking: LockingSession) -> None:
    options: list[Callable[[], object]] = [
        lambda: locking.get_entity(Order, 1, ForUpdate, options=[joinedload(Order.lines)]),
        lambda: with_lock(sa.select(Order).options(joinedload(Order.lines)), ForUpdate),
    ]
    for refused in options:
        with pytest.raises(LockNotSupported, match="selectinload"):
            refused()


# --------------------------------------------------------------------------------------------------
# Mistakes that fail without an error.

NoWait = LockOptions.NoWait


def test_autocommit(database: Database, session_factory: Callable[[], LockingSession]) -> None:
    autocommit = database.engine(isolation_level="AUTOCOMMIT")
    with Session(autocommit) as plain, session_factory() as other:
        kept = plain.get_one(Order, 1, with_for_update=True)
        assert other.get_entity(Order, 1, ForUpdate | NoWait)  # not held
        assert kept
    with LockingSession(autocommit) as session, pytest.raises(LockNotSupported, match="AUTOCOMMIT"):
        session.get_entity(Order, 1, ForUpdate)


def test_a_message_for_what_did_not_happen(
    plain: Session, locking: LockingSession, session_factory: Callable[[], LockingSession]
) -> None:
    sent: list[str] = []
    plain.add(Line(id=3, order_id=1, value=1))  # line 3 exists
    sent.append("mail")
    with pytest.raises(IntegrityError):
        plain.commit()
    assert sent == ["mail"]
    plain.rollback()

    sent.clear()
    order = locking.get_one_entity(Order, 1, ForUpdate)
    locking.add(Line(id=3, order=order, value=1))
    locking.on_commit(lambda: sent.append("mail"))
    with pytest.raises(IntegrityError):
        locking.save_changes()
    locking.rollback()
    assert sent == []

    def send() -> None:
        with session_factory() as other:  # the lock is gone
            assert other.get_entity(Order, 1, ForUpdate | NoWait)
        sent.append("mail")

    order = locking.get_one_entity(Order, 1, ForUpdate)
    locking.add(Line(id=9, order=order, value=1))
    locking.on_commit(send)
    locking.save_changes()
    assert sent == ["mail"]


# --------------------------------------------------------------------------------------------------
# Locks in an order that causes a deadlock.

SharedRead = LockOptions.SharedRead
PlainActors = tuple[Actor[Session], Actor[Session]]


def deadlock(
    one: Actor[Session],
    other: Actor[Session],
    first: Callable[[Session], object],
    second: Callable[[Session], object],
) -> None:
    """Let both take another step; the server ends one of them."""
    steps = [one.starts(first)]
    wait_until_blocked(waiter=one, holder=other, step=steps[0])
    steps.append(other.starts(second))
    futures.wait(steps, timeout=PATIENCE, return_when=futures.FIRST_EXCEPTION)
    failures = [step for step in steps if step.done() and step.exception() is not None]
    assert len(failures) == 1
    assert isinstance(failures[0].exception(), DBAPIError)
    for actor, step in zip((one, other), steps, strict=True):
        if step in failures:
            actor.does(lambda session: session.rollback())
    for step in steps:
        if step not in failures:
            step.result()


def locks(entity: type[Any], ident: int, *, read: bool = False) -> Callable[[Session], object]:
    # On SQL Server with_for_update() compiles to nothing, so programs use a hint to lock.
    locked = sa.select(entity).where(entity.id == ident).with_for_update(read=read)
    locked = locked.with_hint(entity, "WITH (UPDLOCK, ROWLOCK)", "mssql")
    return lambda session: session.scalars(locked).one()


@pytest.mark.not_databases("sqlite")  # there is one lock per file
def test_documents_are_locked_in_any_order(
    plain_actors: PlainActors, alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    one, other = plain_actors
    one.does(locks(Order, 1))
    other.does(locks(Order, 2))
    deadlock(one, other, locks(Order, 2), locks(Order, 1))
    for actor in plain_actors:
        actor.does(lambda session: session.rollback())

    alice.does(lambda session: session.get_entities(Order, [2, 1], ForUpdate))
    step = bob.starts(
        lambda session: [o.id for o in session.get_entities(Order, [1, 2], ForUpdate)]
    )
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    alice.does(lambda session: session.save_changes())
    assert step.result() == [1, 2]


@pytest.mark.not_databases("sqlite", "mssql")  # UPDLOCK is granted beside a reader's S lock
def test_a_read_lock_that_becomes_a_write_lock(
    plain_actors: PlainActors, alice: Actor[LockingSession]
) -> None:
    one, other = plain_actors
    for actor in plain_actors:
        actor.does(locks(Order, 1, read=True))
    deadlock(one, other, locks(Order, 1), locks(Order, 1))
    for actor in plain_actors:
        actor.does(lambda session: session.rollback())

    alice.does(lambda session: session.get_entity(Order, 1, SharedRead))
    with pytest.raises(LockUpgradeRefused, match="take ForUpdate first"):
        alice.does(lambda session: session.get_entity(Order, 1, ForUpdate))


def test_a_read_lock_does_not_become_a_write_lock_anywhere(locking: LockingSession) -> None:
    kept = locking.get_entity(Order, 1, SharedRead)
    with pytest.raises(LockUpgradeRefused, match="take ForUpdate first"):
        locking.get_entity(Order, 1, ForUpdate)
    assert kept


@pytest.mark.not_databases("sqlite")
def test_classes_are_locked_against_their_order(
    plain_actors: PlainActors, engine: sa.Engine
) -> None:
    one, other = plain_actors
    one.does(locks(Order, 1))
    other.does(locks(Customer, 1))
    deadlock(one, other, locks(Customer, 1), locks(Order, 1))
    for actor in plain_actors:
        actor.does(lambda session: session.rollback())
    refuses_order(engine)


def test_classes_are_not_locked_against_their_order_anywhere(engine: sa.Engine) -> None:
    refuses_order(engine)


def refuses_order(engine: sa.Engine) -> None:
    with LockingSession(engine, lock_order=[Customer, Order]) as session:
        order = session.get_one_entity(Order, 1, ForUpdate)
        with pytest.raises(LockOrderViolation, match="Customer before Order"):
            session.get_entity(Customer, 1, ForUpdate)
        session.rollback()
        assert session.get_entity(Customer, 1, ForUpdate)
        assert session.get_entity(Order, 1, ForUpdate) is order


# --------------------------------------------------------------------------------------------------
# The table of docs/documents.md: a mistake, its outcome in plain SQLAlchemy, and the outcome here.


class Mistake(NamedTuple):
    test: str
    mistake: str
    plain: str
    here: str


MISTAKES = (
    Mistake(
        "test_the_lock_is_forgotten",
        "Read an order, change it, and never lock it",
        "the second of two writers overwrites the first, without an error",
        "`UnlockedWrite` before anything is sent; it names the order, the row, the attribute and "
        "the statement that read it",
    ),
    Mistake(
        "test_a_detail_is_locked_in_place_of_its_header",
        "Lock a line, not its order",
        "two sessions each lock their own line, and both compute the total from old lines",
        "`UnlockedWrite`, which names the order to lock",
    ),
    Mistake(
        "test_a_bulk_statement_goes_past_the_lock",
        "`update(Line).where(...)` while another session has locked the order",
        "is executed, although the document is locked",
        "`UnlockedWrite`, for UPDATE, DELETE and INSERT alike",
    ),
    Mistake(
        "test_a_line_moves_to_an_order_that_is_not_locked",
        "Move a line to another order, with one of the two locked",
        "the total of the other order is wrong",
        "`UnlockedWrite`: both orders must be locked",
    ),
    Mistake(
        "test_an_object_that_was_read_before_the_lock",
        "Lock an order that the session has read before",
        "`with_for_update()` returns the old values, and the total loses an update",
        "header, collections and lines are read again after the lock",
    ),
    Mistake(
        "test_lines_that_were_read_before_the_lock",
        "Keep a line in a variable from before the lock",
        "it shows its old value, even after a fresh lock with `populate_existing`",
        "it is read again at its next use",
    ),
    Mistake(
        "test_lock_and_lines_in_one_statement",
        "`joinedload()` the lines in the statement that locks",
        "PostgreSQL returns the new header with the lines from before the wait",
        "`LockNotSupported`; a second statement loads the lines, after the grant",
    ),
    Mistake(
        "test_a_read_lock_that_becomes_a_write_lock",
        "Read under a shared lock, then lock for update",
        "two sessions that do so deadlock",
        "`LockUpgradeRefused` at once, in both sessions",
    ),
    Mistake(
        "test_documents_are_locked_in_any_order",
        "Lock several orders in any order",
        "two sessions that lock in different orders deadlock",
        "`get_entities()` locks in key order, whatever the order of its arguments",
    ),
    Mistake(
        "test_classes_are_locked_against_their_order",
        "Lock an order, then its customer, while other code locks the customer first",
        "works in every test, and deadlocks under load",
        "`LockOrderViolation` at the first attempt, with `lock_order=[Customer, Order]`",
    ),
    Mistake(
        "test_a_savepoint_takes_the_lock_along",
        "Continue after a rollback to the savepoint in which the lock was taken",
        "PostgreSQL has released the lock, and the program writes without it",
        "the session forgets the lock: the next `get_entity()` takes it again, and a write raises `UnlockedWrite`",
    ),
    Mistake(
        "test_autocommit",
        "Lock on an AUTOCOMMIT connection",
        "the lock ends with its statement, without an error",
        "`LockNotSupported`",
    ),
    Mistake(
        "test_a_message_for_what_did_not_happen",
        "Send the mail, then commit",
        "the commit fails, but the mail is sent",
        "`session.on_commit(send)` sends it after the commit, or never",
    ),
)


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.test)
def test_every_row_is_a_test(row: Mistake) -> None:
    assert callable(globals()[row.test])
