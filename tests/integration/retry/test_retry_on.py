"""retry_on=: errors chosen by the program are retried like deadlocks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    OperationalError,
    PendingRollbackError,
    SQLAlchemyError,
)
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import (
    AsyncLockingSession,
    DeadlockDetected,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    async_run_transaction,
    run_transaction,
    transactional,
)
from sa_doclock.testing import rollback_session
from tests.integration.asyncio.drivers import in_a_loop
from tests.integration.retry.counting import NAMES, Counted, Session, deadlocks, own_logic, rename
from tests.integration.retry.test_conflicts import both, renamed, two_databases
from tests.support.models import Customer, Order
from tests.support.rows import rows

__all__ = ["two_databases"]

Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]


class Base(DeclarativeBase):
    pass


class Page(Base):
    """A row with a version and a unique name."""

    __tablename__ = "ro_page"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(20))
    version: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012
    __table_args__ = (sa.UniqueConstraint("name", name="uq_ro_page_name"),)


@pytest.fixture
def pages(engine: sa.Engine) -> Iterator[Factory]:
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    factory = sessionmaker(engine, class_=LockingSession)
    with factory.begin() as session:
        session.add(Page(id=1, name="one"))
    yield factory
    Base.metadata.drop_all(engine)


@pytest.mark.parametrize("at_commit", [True, False])
def test_a_version_that_has_changed_meanwhile(pages: Factory, at_commit: bool) -> None:
    def act(session: Session) -> None:
        page = session.get_one(Page, 1)
        if fn.runs == 1:
            session.connection().execute(sa.update(Page).values(version=7))
        page.name = f"run {fn.runs}"
        if not at_commit:
            session.flush()

    fn = Counted(act=act)
    assert run_transaction(pages, fn, retry_on=StaleDataError, backoff=0) == 2
    with pages() as session:
        assert session.get_one(Page, 1).name == "run 2"


def is_name_taken(error: Exception) -> bool:
    """Return whether the constraint is the name's; SQLite reports its columns."""
    told = str(error.orig) if isinstance(error, IntegrityError) else ""
    return "uq_ro_page_name" in told or "ro_page.name" in told


@pytest.mark.parametrize("name_of_error", ["flush", "swallowed flush", "statement"])
def test_a_named_constraint(pages: Factory, name_of_error: str) -> None:
    def act(session: Session) -> None:
        name = "one" if fn.runs == 1 else "two"
        if name_of_error == "statement":
            session.execute(sa.insert(Page), [{"id": 2, "name": name, "version": 1}])
            return
        session.add(Page(id=2, name=name))
        if name_of_error == "swallowed flush":
            try:
                session.flush()
            except IntegrityError:
                return  # and the commit says so

    fn = Counted(act=act)
    assert run_transaction(pages, fn, retry_on=is_name_taken, backoff=0) == 2
    with pages() as session:
        assert session.scalars(sa.select(Page.name).order_by(Page.id)).all() == ["one", "two"]


def test_another_constraint_is_not(pages: Factory) -> None:
    fn = Counted(act=lambda session: session.add(Page(id=1, name="two")))
    with pytest.raises(IntegrityError):
        run_transaction(pages, fn, retry_on=is_name_taken)
    assert fn.runs == 1


@pytest.mark.databases("postgresql")
def test_a_constraint_that_is_looked_at_by_the_commit(
    engine: sa.Engine, session_factory: Factory, elsewhere: Run
) -> None:
    table = sa.Table("ro_deferred", sa.MetaData(), sa.Column("id", sa.Integer))
    column = "id INTEGER UNIQUE DEFERRABLE INITIALLY DEFERRED"
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS ro_deferred")
        connection.exec_driver_sql(f"CREATE TABLE ro_deferred ({column})")
    fn = Counted(
        act=lambda session: session.execute(
            sa.insert(table), [{"id": 1}, {"id": 1 if fn.runs == 1 else 2}]
        )
    )
    try:
        assert run_transaction(session_factory, fn, retry_on=(IntegrityError,), backoff=0) == 2
        assert elsewhere(sa.select(table).order_by("id")) == [(1,), (2,)]
    finally:
        with engine.begin() as connection:
            table.drop(connection)


class Refused(Exception):
    pass


@own_logic
@pytest.mark.parametrize("retry_on", [Refused, (LookupError, Refused), lambda _: True])
def test_an_error_of_the_program(
    session_factory: Factory, elsewhere: Run, naps: list[float], retry_on: Any
) -> None:
    fn = Counted(Refused(), *deadlocks(1), act=lambda session: rename(session, f"run {fn.runs}"))
    assert run_transaction(session_factory, fn, retry_on=retry_on) == 3
    assert len(set(map(id, fn.sessions))) == 3
    assert len(naps) == 2
    assert elsewhere(NAMES)[0] == (1, "run 3")


@own_logic
@rows(
    "error",
    [Refused({"code": 7}), StaleDataError("1 row"), IntegrityError("INSERT", {}, Exception("no"))],
)
def test_the_last_error_comes_out_itself(
    session_factory: Factory, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    caplog.set_level(logging.INFO, "sa_doclock")
    arguments = error.args
    fn = Counted(type(error).__new__(type(error)), error)
    fn.errors[0].args = ("the first",)
    with pytest.raises(type(error)) as caught:
        run_transaction(session_factory, fn, retry_on=Exception, attempts=2)
    assert caught.value is error
    assert caught.value.attempts == 2  # type: ignore[attr-defined]
    assert not isinstance(caught.value.__context__, type(error))  # of an earlier attempt
    if isinstance(error, SQLAlchemyError):
        assert error.args[0] == f"{arguments[0]} (given up after 2 attempts)"
    else:
        assert error.args == arguments
        notes = getattr(error, "__notes__", ["run_transaction: given up after 2 attempts"])
        assert notes == ["run_transaction: given up after 2 attempts"]
    kind = type(error).__name__
    first, last = [one for one in caplog.records if hasattr(one, "attempt")][-2:]
    assert first.getMessage().endswith(f" s: {kind}: the first")
    said = last.getMessage()
    assert said == f"run_transaction: given up after 2 attempts: {kind}: {arguments[0]}"
    assert [vars(one)["outcome"] for one in (first, last)] == ["retried", "given up"]
    assert [vars(one)["document"] for one in (first, last)] == [None, None]


@own_logic
def test_the_event_has_the_error(session_factory: Factory) -> None:
    class Listened(LockingSession):
        pass

    seen: list[tuple[Exception, int]] = []

    def note(_: Session, error: Exception, attempt: int, __: float | None) -> None:
        seen.append((error, attempt))

    event.listen(Listened, "transaction_retried", note)
    error = Refused()
    factory = sessionmaker(session_factory.kw["bind"], class_=Listened)
    assert run_transaction(factory, Counted(error), retry_on=Refused) == 2
    assert seen == [(error, 1)]


@own_logic
def test_no_interruption_is_repeated_nor_asked_about(session_factory: Factory) -> None:
    def never(_: Exception) -> bool:
        raise AssertionError("asked about an interruption")

    with pytest.raises(KeyboardInterrupt):
        run_transaction(session_factory, Counted(KeyboardInterrupt()), retry_on=never)


@own_logic
def test_the_function_is_asked_of_the_error_behind_and_of_the_one_that_comes_out(
    session_factory: Factory,
) -> None:
    def act(session: Session) -> None:
        session.add(Customer(id=1, name="again"))
        with pytest.raises(IntegrityError):
            session.flush()

    def note(error: Exception) -> bool:
        asked.append(type(error))
        return False

    asked: list[type[Exception]] = []
    fn = Counted(act=act)
    with pytest.raises(PendingRollbackError):
        run_transaction(session_factory, fn, retry_on=note)
    assert asked == [IntegrityError, PendingRollbackError]
    fn = Counted(act=act)
    with pytest.raises(PendingRollbackError, match="given up after 3 attempts"):
        run_transaction(session_factory, fn, retry_on=PendingRollbackError, attempts=3)


@own_logic
def test_what_the_function_raises_comes_out(session_factory: Factory) -> None:
    def fail(_: Exception) -> bool:
        raise LookupError("no idea")

    with pytest.raises(LookupError, match="no idea"):
        run_transaction(session_factory, Counted(Refused()), retry_on=fail)


async def later(_: Exception) -> bool:
    return True


@own_logic
def test_a_coroutine_that_comes_of_it_is_no_answer(session_factory: Factory) -> None:
    retry_on: Any = lambda error: later(error)  # noqa: E731, PLW0108
    with pytest.raises(TypeError, match="retry_on returned a coroutine"):
        run_transaction(session_factory, Counted(Refused()), retry_on=retry_on)


@own_logic
@pytest.mark.parametrize("stage", ["commit", "after_commit", "own commit"])
def test_nothing_that_may_be_committed_is_repeated(
    session_factory: Factory, elsewhere: Run, stage: str
) -> None:
    """It is unknown whether the COMMIT with the lost answer was done."""
    engine: sa.Engine = session_factory.kw["bind"]

    def lose(connection: sa.Connection) -> None:
        driver: Any = connection.connection.dbapi_connection
        driver.commit()
        raise OperationalError("COMMIT", {}, Exception("gone"), connection_invalidated=True)

    def act(session: Session) -> None:
        rename(session, f"run {fn.runs}")
        if stage == "commit":
            event.listen(session.connection(), "commit", lose)
        elif stage == "own commit":
            session.commit()
            raise Refused

    class Failing(LockingSession):
        pass

    @event.listens_for(Failing, "after_commit")
    def fail(_: Session) -> None:
        if stage == "after_commit":
            raise Refused

    fn = Counted(act=act)
    with pytest.raises((Refused, OperationalError)):
        run_transaction(sessionmaker(engine, class_=Failing), fn, retry_on=Exception)
    assert fn.runs == 1
    assert elsewhere(NAMES)[0] == (1, "run 1")


@pytest.mark.databases("postgresql")
def test_a_connection_that_is_cut_before_the_commit_is_the_programs_choice(
    make_engine: Callable[..., sa.Engine], elsewhere: Run
) -> None:
    def act(session: Session) -> None:
        rename(session, f"run {fn.runs}")
        if fn.runs == 1:
            pid = session.scalar(sa.text("SELECT pg_backend_pid()"))
            elsewhere(sa.select(sa.func.pg_terminate_backend(pid, 5000)))
            session.scalars(NAMES).all()

    def is_lost(error: Exception) -> bool:
        return isinstance(error, DBAPIError) and error.connection_invalidated

    factory = sessionmaker(make_engine(), class_=LockingSession)
    fn = Counted(act=act)
    assert run_transaction(factory, fn, retry_on=is_lost, backoff=0) == 2
    assert elsewhere(NAMES)[0] == (1, "run 2")


@pytest.mark.databases("postgresql")
def test_nor_is_it_where_the_connection_is_cut_at_the_commit(
    make_engine: Callable[..., sa.Engine], elsewhere: Run
) -> None:
    def act(session: Session) -> None:
        rename(session, f"run {fn.runs}")
        pid = session.scalar(sa.text("SELECT pg_backend_pid()"))
        elsewhere(sa.select(sa.func.pg_terminate_backend(pid, 5000)))

    fn = Counted(act=act)
    with pytest.raises(DBAPIError):
        run_transaction(sessionmaker(make_engine(), class_=LockingSession), fn, retry_on=DBAPIError)
    assert fn.runs == 1


@own_logic
def test_two_databases(two_databases: Factory) -> None:
    """An error before the commit undoes both; an error of COMMIT may leave one committed."""
    fn = Counted(Refused(), act=both)
    assert run_transaction(two_databases, fn, retry_on=Refused) == 2

    def refuse(*_: object) -> None:
        raise IntegrityError("COMMIT", {}, Exception("no"))

    def act(session: Session) -> None:
        both(session)
        event.listen(session.connection(bind_arguments={"mapper": Customer}), "commit", refuse)

    fn = Counted(act=act)
    with pytest.raises(IntegrityError):
        run_transaction(two_databases, fn, retry_on=IntegrityError)
    assert fn.runs == 1


@own_logic
def test_a_failed_flush_is_no_failed_commit(two_databases: Factory) -> None:
    def act(session: Session) -> None:
        both(session)
        if fn.runs == 1:
            session.add(Order(id=1, total=1))

    fn = Counted(act=act)
    assert run_transaction(two_databases, fn, retry_on=IntegrityError) == 2


@own_logic
def test_a_rollback_session_of_a_test(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        fn = Counted(Refused(), act=lambda session: session.execute(renamed(1)))
        assert run_transaction(lambda: rollback_session(connection), fn, retry_on=Refused) == 2


@own_logic
def test_the_decorator(session_factory: Factory) -> None:
    fn = Counted(Refused(), *deadlocks(1))

    @transactional(session_factory, retry_on=Refused, backoff=0)
    def place(session: Session) -> int:
        return fn(session)

    assert place() == 3


@in_a_loop
async def test_the_twins() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    factory = async_sessionmaker(engine, class_=AsyncLockingSession)
    errors: list[Exception] = [Refused(), DeadlockDetected("no"), Refused(), DeadlockDetected("no")]

    async def fn(_: AsyncLockingSession) -> int:
        if len(errors) % 2 == 0 and errors:
            raise errors.pop()
        if errors:
            raise errors.pop()
        return 7

    assert await async_run_transaction(factory, fn, retry_on=Refused, backoff=0) == 7
    errors[:] = [Refused()]
    place = transactional(factory, retry_on=lambda e: isinstance(e, Refused), backoff=0)(fn)
    assert await place() == 7
    await engine.dispose()


def test_a_lock_can_be_in_it(session_factory: Factory, other: Session) -> None:
    other.get_one_entity(Order, 1, LockOptions.ForUpdate)

    def act(session: Session) -> None:
        if fn.runs == 2:
            other.rollback()
        session.get_one_entity(Order, 1, LockOptions.ForUpdate | LockOptions.NoWait)

    fn = Counted(act=act)
    assert run_transaction(session_factory, fn, retry_on=LockNotAvailable) == 2
