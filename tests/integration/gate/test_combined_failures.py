"""gate.run() leaves out a failing function, and saves the others once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, NoResultFound, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, sessionmaker

from sa_doclock import (
    CommitUnknown,
    DocumentGate,
    LockingSession,
    LockLost,
    LockMisuse,
    LockNotAvailable,
    LockOptions,
    StaleDocument,
)
from sa_doclock.features.gate import combined, queues_of
from tests.integration.gate.queueing import wait_until_queued
from tests.integration.gate.test_combined import (
    Function,
    Send,
    Session,
    add,
    fail,
    gate,
    held,
    send,
    session_factory,
    total,
)
from tests.support.actors import PATIENCE, Actor
from tests.support.databases import Database
from tests.support.models import Account, Customer, Line, Order
from tests.support.waits import wait_until

__all__ = ["gate", "held", "send", "session_factory"]

Release = Callable[[], None]


class Seen:
    """A test's functions, with counts of their calls and of the statements sent meanwhile."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    def __call__(self, name: str, function: Function) -> Function:
        def counted(session: Session, order: Any) -> Any:
            self.runs[name] += 1
            return function(session, order)

        return counted

    @contextmanager
    def statements(self, engine: sa.Engine) -> Iterator[None]:
        """Count the statements by their first word, the commits and the rollbacks."""

        def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            self.sent[statement.split(maxsplit=1)[0]] += 1

        def note_commit(_: Any) -> None:
            self.sent["COMMIT"] += 1

        def note_rollback(_: Any) -> None:
            self.sent["ROLLBACK"] += 1

        noted: dict[str, Callable[..., Any]] = {
            "before_cursor_execute": note,
            "commit": note_commit,
            "rollback": note_rollback,
        }
        for name, function in noted.items():
            sa.event.listen(engine, name, function)
        yield
        for name, function in noted.items():
            sa.event.remove(engine, name, function)


def raise_first(_session: Session, _order: Any) -> None:
    raise ZeroDivisionError


def raise_after_query(session: Session, _order: Any) -> None:
    session.scalars(sa.select(Order).where(Order.id == 2)).one()
    session.scalar(sa.select(sa.func.count()).select_from(Customer))
    raise ZeroDivisionError


@pytest.mark.parametrize("raises", [raise_first, raise_after_query])
def test_one_that_raises_before_a_change_costs_nothing(
    send: Send, held: Release, engine: sa.Engine, session: Session, raises: Function
) -> None:
    seen = Seen()
    functions = [seen("a", add(1)), seen("raises", raises), seen("b", add(2)), seen("c", raises)]
    calls = [send(one) for one in functions]
    with seen.statements(engine):
        held()
        errors = [call.exception(PATIENCE) for call in calls]
    assert [type(one) for one in errors] == [type(None), ZeroDivisionError] * 2
    assert seen.runs == {"a": 1, "raises": 1, "b": 1, "c": 1}
    assert seen.sent["COMMIT"] == 1
    assert total(session) == 33


def raise_after_dml(session: Session, _order: Any) -> None:
    session.execute(sa.update(Customer).where(Customer.id == 1).values(name="changed"))
    raise ZeroDivisionError


def raise_after_text(session: Session, _order: Any) -> None:
    session.execute(sa.text("UPDATE lk_customer SET name = 'changed' WHERE id = 1"))
    raise ZeroDivisionError


def raise_after_driver_text(session: Session, _order: Any) -> None:
    sql = "UPDATE lk_customer SET name = 'changed' WHERE id = 1"
    session.connection().exec_driver_sql(sql)
    raise ZeroDivisionError


def raise_after_flush(session: Session, order: Any) -> None:
    order.total += 1000
    session.flush()
    raise ZeroDivisionError


def raise_in_savepoint(session: Session, order: Any) -> None:
    session.begin_nested()
    fail(session, order)


def raise_after_other(session: Session, _order: Any) -> None:
    session.get_one(Customer, 1).name = "changed"
    raise ZeroDivisionError


def raise_after_delete(session: Session, order: Any) -> None:
    session.delete(order)
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "raises",
    [
        *(fail, raise_after_dml, raise_after_text, raise_after_driver_text, raise_after_flush),
        *(raise_in_savepoint, raise_after_other, raise_after_delete),
    ],
)
def test_one_that_raises_after_a_change_is_left_out(
    send: Send, held: Release, session: Session, raises: Function
) -> None:
    calls = [send(add(1)), send(raises), send(add(2)), send(add(3))]
    held()
    assert isinstance(calls.pop(1).exception(PATIENCE), ZeroDivisionError)
    assert [call.result(PATIENCE) for call in calls] == [31, 33, 36]
    assert total(session) == 36
    assert session.scalars(sa.select(Customer.name).where(Customer.id == 1)).one() != "changed"


def break_flush(session: Session, order: Any) -> None:
    order.total += 1000
    session.add(Customer(id=1, name="again"))


def break_own_flush(session: Session, order: Any) -> None:
    break_flush(session, order)
    session.flush()


def swallow_flush(session: Session, order: Any) -> None:
    break_flush(session, order)
    with suppress(IntegrityError):
        session.flush()


@pytest.mark.parametrize("breaks", [break_flush, break_own_flush, swallow_flush])
def test_one_whose_flush_fails_is_found_and_left_out(
    send: Send, held: Release, session: Session, breaks: Function
) -> None:
    seen = Seen()
    calls = [send(seen(str(n), add(n))) for n in (1, 2)]
    calls.append(send(breaks))
    calls += [send(seen(str(n), add(n))) for n in (3, 4, 5)]
    held()
    assert isinstance(calls.pop(2).exception(PATIENCE), SQLAlchemyError)
    assert [call.result(PATIENCE) for call in calls] == [31, 33, 36, 40, 45]
    assert total(session) == 45


def test_the_flush_that_a_query_of_another_starts_is_not_its_fault(
    send: Send, held: Release, session: Session
) -> None:
    def query(session: Session, order: Any) -> int:
        order.total += session.scalars(sa.select(Order.total).where(Order.id == 2)).one()
        return int(order.total)

    calls = [send(add(1)), send(break_flush), send(query), send(query)]
    held()
    assert isinstance(calls[1].exception(PATIENCE), IntegrityError)
    assert [calls[n].result(PATIENCE) for n in (0, 2, 3)] == [31, 36, 41]
    assert total(session) == 41


def test_an_error_that_comes_of_a_change_which_is_not_saved_is_nobodys_answer(
    send: Send, held: Release
) -> None:
    def buy(session: Session, order: Any) -> int:
        if order.total > 100:
            raise ZeroDivisionError
        return int(add(1)(session, order))

    calls = [send(break_flush), send(buy), send(buy)]
    held()
    assert isinstance(calls[0].exception(PATIENCE), IntegrityError)
    assert [calls[1].result(PATIENCE), calls[2].result(PATIENCE)] == [31, 32]


def test_the_neighbours_of_one_that_swallows_an_error_keep_their_work(
    send: Send, held: Release, engine: sa.Engine, session: Session
) -> None:
    def swallow(session: Session, order: Any) -> None:
        order.total += 1000
        with suppress(IntegrityError):
            session.execute(sa.insert(Customer).values(id=1, name="again"))

    calls = [send(add(1)), send(swallow), send(add(2))]
    held()
    swallows = calls.pop(1)
    aborts = engine.dialect.name == "postgresql"  # aborts its transaction at each error
    assert isinstance(swallows.exception(PATIENCE), SQLAlchemyError if aborts else type(None))
    more = 0 if aborts else 1000
    assert [call.result(PATIENCE) for call in calls] == [31, 33 + more]
    assert total(session) == 33 + more


@pytest.mark.parametrize("how", ["text", "connection"])
@pytest.mark.parametrize("sent", [False, True])
def test_where_one_has_committed_by_itself_nothing_is_doubled(
    send: Send, held: Release, session: Session, how: str, sent: bool
) -> None:
    def first(session: Session, order: Any) -> Any:
        order.total += 1
        if sent:
            session.flush()
        return int(order.total)

    def commit(session: Session, _order: Any) -> None:
        if how == "text":
            session.execute(sa.text("COMMIT"))
        else:
            session.connection().commit()

    seen = Seen()
    calls = [send(first), send(seen("commit", commit)), send(add(10))]
    held()
    assert isinstance(calls[1].exception(PATIENCE), (LockMisuse, DBAPIError))
    error = calls[0].exception(PATIENCE)
    if sent:  # it may be saved, and it is
        assert isinstance(error, CommitUnknown)
        assert not isinstance(error, LockLost)
        assert "may or may not be saved" in str(error)
        assert seen.runs["commit"] == 1  # its own changes may be too
    assert calls[2].result(PATIENCE) == total(session) == 41


@pytest.mark.databases("mysql", "mariadb")  # there DDL ends the transaction
def test_one_that_ends_the_transaction_by_ddl_is_not_called_again(
    send: Send, held: Release, session: Session
) -> None:
    def create(session: Session, order: Any) -> None:
        order.total += 5
        session.flush()
        session.execute(sa.text("CREATE TABLE IF NOT EXISTS gate_ddl (id INTEGER)"))

    seen = Seen()
    calls = [send(add(1)), send(seen("create", create)), send(add(10))]
    held()
    assert isinstance(calls[0].exception(PATIENCE), CommitUnknown)
    assert isinstance(calls[1].exception(PATIENCE), LockMisuse)
    assert seen.runs["create"] == 1
    assert calls[2].result(PATIENCE) == total(session) == 46  # each is saved once


def test_what_a_failed_try_has_added_is_gone_and_on_commit_runs_once(
    send: Send, held: Release, session: Session
) -> None:
    made: list[Customer] = []
    reported: list[str] = []

    def insert(session: Session, order: Any) -> int:
        made.append(Customer(id=100, name="new"))
        session.add(made[-1])
        session.on_commit(lambda: reported.append("mail"))
        return int(add(1)(session, order))

    def fail_with_mail(session: Session, order: Any) -> None:
        session.on_commit(lambda: reported.append("wrong"))
        fail(session, order)

    calls = [send(insert), send(fail_with_mail), send(add(2))]
    held()
    assert calls[0].result(PATIENCE) == 31
    assert isinstance(calls[1].exception(PATIENCE), ZeroDivisionError)
    assert calls[2].result(PATIENCE) == 33
    assert len(made) == 2
    assert sa.inspect(made[0]).transient
    assert reported == ["mail"]
    assert session.get_one(Customer, 100).name == "new"


def test_on_commit_runs_though_the_changes_cancel_each_other_out(
    send: Send, held: Release, engine: sa.Engine, session: Session
) -> None:
    reported: list[str] = []

    def add_with_mail(number: int) -> Function:
        def function(session: Session, order: Any) -> None:
            session.on_commit(lambda: reported.append(f"{number:+}"))
            order.total += number

        return function

    calls = [send(add_with_mail(5)), send(add_with_mail(-5))]
    seen = Seen()
    with seen.statements(engine):
        held()
        assert [call.exception(PATIENCE) for call in calls] == [None, None]
    assert seen.sent["UPDATE"] == 0
    assert reported == ["+5", "-5"]
    assert total(session) == 30


def test_what_one_that_raises_gives_to_on_commit_is_nobodys(
    send: Send, held: Release, session: Session
) -> None:
    reported: list[str] = []

    def raise_with_mail(session: Session, _order: Any) -> None:
        session.on_commit(lambda: reported.append("wrong"))
        raise ZeroDivisionError

    calls = [send(add(1)), send(raise_with_mail), send(add(2))]
    held()
    assert isinstance(calls[1].exception(PATIENCE), ZeroDivisionError)
    assert calls[2].result(PATIENCE) == 33 == total(session)
    assert not reported


def test_another_document_may_be_locked_by_the_session(
    send: Send, held: Release, session: Session
) -> None:
    def move(session: Session, order: Any) -> int:
        other = session.get_one_entity(Order, 2, LockOptions.ForUpdate)
        other.total -= 1
        return int(add(1)(session, order))

    calls = [send(move), send(fail), send(move)]
    held()
    assert [calls[n].result(PATIENCE) for n in (0, 2)] == [31, 32]
    assert session.get_one(Order, 2).total == 3


def test_within_a_function_it_is_refused(
    gate: DocumentGate, session_factory: Any, session: Session
) -> None:
    def again(_session: Session, order: Any) -> None:
        order.total += 1
        gate.run(session_factory, Order, 2, add(1))

    with pytest.raises(LockMisuse, match="a function of gate"):
        gate.run(session_factory, Order, 1, again)
    assert [session.get_one(Order, n).total for n in (1, 2)] == [30, 5]
    assert gate.run(session_factory, Order, 1, add(1)) == 31


@pytest.mark.not_databases("sqlite")  # there a single lock covers all documents
@pytest.mark.parametrize("changes", [False, True])
def test_a_lock_of_another_document_that_times_out_is_its_functions_own_error(
    send: Send,
    held: Release,
    dave: Callable[..., Actor[Session]],
    engine: sa.Engine,
    session: Session,
    changes: bool,
) -> None:
    dave(sessionmaker(engine, class_=Session)).does(
        lambda session: session.get_one_entity(Order, 2, LockOptions.ForUpdate)
    )

    def lock_another(session: Session, order: Any) -> None:
        order.total += 1000 * changes
        session.get_one_entity(Order, 2, LockOptions.ForUpdate, lock_timeout=0.1)

    calls = [send(add(1)), send(lock_another), send(add(2)), send(lock_another), send(add(3))]
    held()
    assert [calls[n].result(PATIENCE) for n in (0, 2, 4)] == [31, 33, 36]
    errors = [calls[n].exception(PATIENCE) for n in (1, 3)]
    assert [type(error) for error in errors] == [LockNotAvailable] * 2
    assert total(session) == 36


def test_after_one_that_deletes_the_document_there_is_none(
    send: Send, held: Release, session: Session
) -> None:
    calls = [send(add(1)), send(lambda session, order: session.delete(order)), send(add(2))]
    held()
    assert calls[0].result(PATIENCE) == 31
    assert calls[1].exception(PATIENCE) is None
    assert isinstance(calls[2].exception(PATIENCE), NoResultFound)
    assert session.get(Order, 1) is None


def test_of_those_who_have_seen_a_version_the_first_is_saved(
    send: Send, alice: Actor[Session], session: Session
) -> None:
    alice.does(lambda session: session.get_one_entity(Account, 1, LockOptions.ForUpdate))
    seen = Seen()
    calls = [
        send(seen(str(n), add(n)), entity=Account, version=version)
        for n, version in enumerate((9, 1, 1, 2, None, 1))
    ]
    alice.does(lambda session: session.rollback())
    errors = [call.exception(PATIENCE) for call in calls]
    assert [type(one) for one in errors] == [
        *(StaleDocument, type(None), StaleDocument, type(None), type(None), StaleDocument)
    ]
    assert set(seen.runs) == {"1", "3", "4"}
    account = session.get_one(Account, 1)
    assert account.total == 30 + 1 + 3 + 4


def test_what_cancels_out_in_one_flush_is_not_seen_by_the_database(
    send: Send, held: Release, session: Session
) -> None:
    calls = [send(add(5)), send(add(-5))]
    seen = Seen()
    with seen.statements(session.get_bind()):  # type: ignore[arg-type]
        held()
        assert [call.result(PATIENCE) for call in calls] == [35, 30]
    assert seen.sent["UPDATE"] == 0
    assert total(session) == 30


class Spots(DeclarativeBase):
    """A separate table, whose constraints differ between one flush and several transactions."""


class Hall(Spots):
    __tablename__ = "gate_hall"
    __table_args__ = (sa.CheckConstraint("free >= 0", name="gate_hall_free"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    free: Mapped[int] = mapped_column(default=0)
    seats: Mapped[list[Seat]] = relationship(order_by="Seat.id")


class Seat(Spots):
    __tablename__ = "gate_seat"
    __table_args__ = (sa.UniqueConstraint("hall_id", "number"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    hall_id: Mapped[int] = mapped_column(sa.ForeignKey("gate_hall.id"))
    number: Mapped[int]


def test_a_check_counts_for_the_result_and_a_unique_value_may_be_freed_and_taken(
    documents: Database,
    gate: DocumentGate,
    session_factory: sessionmaker[Session],
    alice: Actor[Session],
    session: Session,
) -> None:
    documents.create(Spots.metadata)
    session.add(Hall(id=1, seats=[Seat(id=1, number=1), Seat(id=2, number=2)]))
    session.commit()

    def take(number: int) -> Function:
        def function(_session: Session, hall: Any) -> int:
            hall.free -= number
            return int(hall.free)

        return function

    def move(seat: int, number: int) -> Function:
        def function(_session: Session, hall: Any) -> None:
            hall.seats[seat - 1].number = number

        return function

    def together(*functions: Function) -> list[Any]:
        alice.does(lambda session: session.get_one_entity(Hall, 1, LockOptions.ForUpdate))
        run: Callable[..., Any] = gate.run
        with ThreadPoolExecutor(len(functions)) as threads:
            calls = []
            for number, one in enumerate(functions, start=1):
                calls.append(threads.submit(run, session_factory, Hall, 1, one))
                wait_until_queued(gate, number=number)
            alice.does(lambda session: session.rollback())
            return [call.exception(PATIENCE) or call.result() for call in calls]

    assert together(take(1), take(-1)) == [-1, 0]  # the database never saw -1
    assert isinstance(together(take(1), take(0))[0], DBAPIError)  # there it stays
    # The flush writes row 1 first, with a number that row 2 still has: so each is saved alone.
    assert together(move(2, 3), move(1, 2)) == [None, None]
    rows = session.execute(sa.select(Seat.id, Seat.number).order_by(Seat.id)).all()
    assert [tuple(row) for row in rows] == [(1, 2), (2, 3)]


@pytest.mark.databases("postgresql", "mysql", "mariadb")  # on SQLite it waits for this transaction
def test_a_session_that_a_function_opens_saves_each_time_it_is_called(
    send: Send, held: Release, session_factory: sessionmaker[Session], session: Session
) -> None:
    seen = Seen()

    def spawn(session: Session, order: Any) -> Any:
        with session_factory() as own:
            own.add(Customer(id=100 + seen.runs["spawn"], name="own"))
            own.commit()
        return add(1)(session, order)

    calls = [send(seen("spawn", spawn)), send(fail)]
    held()
    assert calls[0].result(PATIENCE) == 31 == total(session)
    assert isinstance(calls[1].exception(PATIENCE), ZeroDivisionError)
    found = session.scalars(sa.select(Customer.id).where(Customer.name == "own")).all()
    assert sorted(found) == [101, 102]
    assert seen.runs["spawn"] == 2


def test_a_queue_whose_functions_fail_goes_on_with_a_transaction_each_and_recovers(
    gate: DocumentGate, engine: sa.Engine, alice: Actor[Session], session: Session
) -> None:
    made: list[object] = []
    sessions = sessionmaker(engine, class_=LockingSession)

    @sa.event.listens_for(sessions, "after_transaction_create")
    def begun(session: Any, transaction: Any) -> None:
        if transaction.parent is None:  # else of a flush
            made.append(session)

    def sessions_of_three(arrived: Callable[[], bool]) -> int:
        """Return the number of transactions for three callers that queue for a held document."""
        made.clear()
        alice.does(lambda session: session.get_one_entity(Order, 1, LockOptions.ForUpdate))
        with ThreadPoolExecutor(3) as threads:
            run: Callable[..., Any] = gate.run
            calls = [threads.submit(run, sessions, Order, 1, add(1)) for _ in range(3)]
            wait_until(arrived)
            alice.does(lambda session: session.rollback())
            for one in calls:
                one.result(PATIENCE)
        return len(made)

    assert sessions_of_three(lambda: gate.waiting == 3) == 1
    for _ in range(combined._ALONE + 20):
        with pytest.raises(ZeroDivisionError):
            gate.run(sessions, Order, 1, fail)
    at_server = 1 if session.get_bind().dialect.name == "sqlite" else 3  # no caller is late there
    assert sessions_of_three(lambda: (gate.waiting, len(made)) == (3, at_server)) == 3
    for _ in range(combined._MOST):
        gate.run(sessions, Order, 1, add(1))
    assert sessions_of_three(lambda: gate.waiting == 3) == 1
    assert not queues_of(gate).failures
    assert total(session) == 30 + 9 + combined._MOST


def test_a_transaction_of_its_own_is_that_of_locked_document(
    gate: DocumentGate, session_factory: sessionmaker[Session], engine: sa.Engine
) -> None:
    threads, seen, by_block = list[int](), Seen(), Seen()

    def change(session: Session, order: Any) -> None:
        threads.append(threading.get_ident())
        add(1)(session, order)

    for _ in range(combined._ALONE + 1):
        with pytest.raises(ZeroDivisionError):
            gate.run(session_factory, Order, 1, fail)
    for function in (change, fail):
        with by_block.statements(engine), suppress(ZeroDivisionError):  # noqa: SIM117
            with session_factory() as session, session.locked_document(Order, 1) as order:
                function(session, order)
        with seen.statements(engine), suppress(ZeroDivisionError):
            gate.run(session_factory, Order, 1, function)
    assert seen.sent == by_block.sent
    assert seen.sent["COMMIT"] == seen.sent["ROLLBACK"] == 1
    assert set(threads) == {threading.get_ident()}


def add_by_text(session: Session, _order: Any) -> None:
    session.execute(sa.text("UPDATE lk_order SET total = total + 100 WHERE id = 1"))


def add_by_table(session: Session, _order: Any) -> None:
    table = Order.metadata.tables["lk_order"]
    session.execute(sa.update(table).where(table.c.id == 1).values(total=table.c.total + 100))


def add_by_connection(session: Session, _order: Any) -> None:
    table = Order.metadata.tables["lk_order"]
    statement = sa.update(table).where(table.c.id == 1).values(total=table.c.total + 100)
    session.connection().execute(statement)


@pytest.mark.parametrize("by_statement", [add_by_text, add_by_table, add_by_connection])
def test_what_a_statement_of_one_has_written_the_next_one_sees(
    send: Send, held: Release, session: Session, by_statement: Function
) -> None:
    calls = [send(by_statement), send(add(1)), send(by_statement), send(add(2))]
    held()
    assert [calls[n].result(PATIENCE) for n in (1, 3)] == [131, 233]
    assert total(session) == 233


@pytest.mark.parametrize("autoflush", [True, False])
@pytest.mark.parametrize("how", ["text", "connection", "select"])
def test_what_the_one_before_has_changed_a_statement_sees(
    gate: DocumentGate,
    session_factory: sessionmaker[Session],
    held: Release,
    how: str,
    autoflush: bool,
) -> None:
    session_factory.configure(autoflush=autoflush)
    query = sa.select(Order.total).where(Order.id == 1)

    def read(session: Session, _order: Any) -> Any:
        if how == "connection":
            return session.connection().scalar(query)
        return session.scalar(
            query
            if how == "select"
            else sa.text(str(query.compile(compile_kwargs={"literal_binds": True})))
        )

    with ThreadPoolExecutor(2) as threads:
        run: Callable[..., Any] = gate.run
        calls = []
        for number, function in enumerate((add(1), read), 1):
            calls.append(threads.submit(run, session_factory, Order, 1, function))
            wait_until_queued(gate, number=number)
        held()
        assert [call.result(PATIENCE) for call in calls] == [31, 31]


def test_a_new_line_of_each_is_saved_once(send: Send, held: Release, session: Session) -> None:
    def add_line(number: int) -> Function:
        def function(_session: Session, order: Any) -> int:
            order.lines.append(Line(id=number, name="new", value=1))
            return len(order.lines)

        return function

    calls = [send(add_line(100)), send(fail), send(add_line(101)), send(break_flush)]
    calls.append(send(add_line(102)))
    held()
    assert [calls[n].result(PATIENCE) for n in (0, 2, 4)] == [3, 4, 5]
    assert [line.id for line in session.get_one(Order, 1).lines][2:] == [100, 101, 102]
