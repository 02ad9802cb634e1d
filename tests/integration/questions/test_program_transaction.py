"""The first use of an engine leaves the program's transaction as if nothing had been sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sa_doclock import DocumentGate, LockingSession, LockNotSupported, LockOptions
from sa_doclock.dialects import strategies, strategy_for
from tests.integration.questions.conftest import SAME, Run, watch
from tests.support.databases import Database
from tests.support.models import Customer, Order

pytestmark = [
    pytest.mark.each_value,
    pytest.mark.databases("postgresql", "mysql", "mariadb"),
    pytest.mark.not_databases(*SAME),
]

ForUpdate = LockOptions.ForUpdate
REPEATABLE_READ = {"isolation_level": "REPEATABLE READ"}
RENAMED = sa.update(Customer).where(Customer.id == 1).values(name="Zoe")
Elsewhere = Callable[..., list[Any]]
Open = Callable[[sa.Engine], Any]


@contextmanager
def of_the_engine(engine: sa.Engine) -> Iterator[LockingSession]:
    with LockingSession(engine) as session:
        yield session


@contextmanager
def on_a_connection(engine: sa.Engine) -> Iterator[LockingSession]:
    with engine.connect() as lent, LockingSession(lent) as session:
        yield session


def in_a_transaction(mode: Any) -> Open:
    """Return a function that opens a session on a Connection in the program's transaction."""

    @contextmanager
    def opened(engine: sa.Engine) -> Iterator[LockingSession]:
        with (
            engine.connect() as lent,
            lent.begin(),
            LockingSession(lent, join_transaction_mode=mode) as session,
        ):
            yield session

    return opened


#: The ways in which a session gets its connection, without sending a statement.
OPEN: Mapping[str, Open] = {
    "engine": of_the_engine,
    "lent": on_a_connection,
    "lent in a transaction": in_a_transaction("conditional_savepoint"),
    "rollback_only": in_a_transaction("rollback_only"),
    "control_fully": in_a_transaction("control_fully"),
}
each_way = pytest.mark.parametrize("opened", OPEN.values(), ids=OPEN)
in_a_savepoint = in_a_transaction("create_savepoint")


def first_use(session: LockingSession) -> None:
    """Run the library's queries at the start of a session, and send nothing else."""
    session.connection()
    assert session.get_bind().dialect in strategies


def name_of(session: LockingSession) -> str:
    return session.scalars(sa.select(Customer.name).where(Customer.id == 1)).one()


@each_way
@pytest.mark.databases("postgresql")
def test_set_transaction_is_its_first_statement(run: Run, opened: Open) -> None:
    def play(engine: sa.Engine) -> str:
        with opened(engine) as session:
            first_use(session)
            session.execute(sa.text("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"))
            level: str = session.scalars(sa.text("SHOW transaction_isolation")).one()
            return level

    assert run(play) == "serializable"


@pytest.mark.parametrize(
    "opened", [*OPEN.values(), in_a_savepoint], ids=[*OPEN, "create_savepoint"]
)
def test_its_snapshot_is_not_older_than_its_first_read(
    run: Run, opened: Open, elsewhere: Elsewhere
) -> None:
    def play(engine: sa.Engine) -> str:
        with opened(engine) as session:
            first_use(session)
            elsewhere(RENAMED)
            return name_of(session)

    assert run(play, **REPEATABLE_READ) == "Zoe"


@each_way
@pytest.mark.databases("postgresql")
def test_what_is_read_under_a_table_lock_is_not_older(
    run: Run, opened: Open, elsewhere: Elsewhere
) -> None:
    def play(engine: sa.Engine) -> str:
        with opened(engine) as session:
            first_use(session)
            elsewhere(RENAMED)
            session.execute(sa.text("LOCK TABLE lk_customer IN EXCLUSIVE MODE"))
            return name_of(session)

    assert run(play, **REPEATABLE_READ) == "Zoe"


@each_way
def test_it_has_not_begun_at_the_server(run: Run, opened: Open, documents: Database) -> None:
    def play(engine: sa.Engine) -> list[bool]:
        with engine.connect() as connection:  # returns to the pool, and is taken next
            is_in_transaction = watch(documents, connection)
        with opened(engine) as session:
            first_use(session)
            before = is_in_transaction(session.connection())
            name_of(session)
            return [before, is_in_transaction(session.connection())]

    assert run(play, pool_size=1, max_overflow=0) == [False, True]


@pytest.mark.databases("postgresql")
def test_one_that_has_begun_with_set_transaction_has_no_snapshot_yet(
    run: Run, elsewhere: Elsewhere
) -> None:
    def play(engine: sa.Engine) -> str:
        with engine.connect() as lent, LockingSession(lent) as session:
            lent.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            first_use(session)
            elsewhere(RENAMED)
            return name_of(session)

    assert run(play) == "Zoe"


@pytest.mark.databases("mysql", "mariadb")
def test_a_set_transaction_of_the_program_is_not_used_up(run: Run) -> None:
    def play(engine: sa.Engine) -> None:
        with engine.connect() as lent, LockingSession(lent) as session:
            lent.execute(sa.text("SET TRANSACTION READ ONLY"))
            first_use(session)
            with pytest.raises(DBAPIError, match="READ ONLY transaction"):
                session.execute(RENAMED)

    run(play)


# Calls that query first, on a new engine, on a Connection lent by the program.


def locks(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate)


def locks_in_time(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate, lock_timeout=5)


def locks_a_document(session: LockingSession) -> None:
    session.get_one_document(Order, 1, ForUpdate)


def locks_a_set(session: LockingSession) -> None:
    session.scalars(session.entity_set(Order, ForUpdate)).all()


def locks_by_for_update(session: LockingSession) -> None:
    session.scalars(sa.select(Order).with_for_update()).all()


def locks_a_name(session: LockingSession) -> None:
    session.lock_key("orders")


def reads(session: LockingSession) -> None:
    session.get_one(Order, 1)


LOCKS = (locks, locks_in_time, locks_a_document, locks_a_set, locks_by_for_update)
FEATURES = (*LOCKS, locks_a_name, reads)
OPTIONS: tuple[Mapping[str, Any], ...] = (
    {},
    {"hold_limit": 60},
    {"diagnose": True},
    {"gate": None},
    {"priority": "batch"},
)
each_feature = pytest.mark.parametrize("feature", FEATURES)
each_option = pytest.mark.parametrize(
    "options", OPTIONS, ids=[" ".join(o) or "plain" for o in OPTIONS]
)


def with_gate(options: Mapping[str, Any]) -> dict[str, Any]:
    return {**options, **({"gate": DocumentGate()} if "gate" in options else {})}


@each_feature
@each_option
def test_the_transaction_that_it_opens_is_the_sessions(
    run: Run,
    documents: Database,
    elsewhere: Elsewhere,
    feature: Callable[[LockingSession], None],
    options: Mapping[str, Any],
) -> None:
    """So save_changes() commits, and the connection returns without a transaction."""

    def play(engine: sa.Engine) -> None:
        with engine.connect() as lent, LockingSession(lent, **with_gate(options)) as session:
            is_in_transaction = watch(documents, lent)
            feature(session)
            session.execute(RENAMED)
            session.save_changes()
            assert not session.in_transaction()
            assert not lent.in_transaction()
            assert not is_in_transaction(lent)

    run(play)
    assert elsewhere(sa.select(Customer.name).where(Customer.id == 1)) == [("Zoe",)]


@each_feature
def test_the_transaction_of_the_lender_goes_on(
    run: Run, elsewhere: Elsewhere, feature: Callable[[LockingSession], None]
) -> None:
    options = {"isolation_level": "READ COMMITTED"}

    def play(engine: sa.Engine) -> None:
        with engine.connect() as lent, lent.begin() as transaction:
            lent.execute(RENAMED)
            with LockingSession(lent) as session:
                feature(session)
                session.save_changes()
            assert transaction.is_active
            assert elsewhere(sa.select(Customer.name).where(Customer.id == 1)) == [("Ann",)]

    run(play, **options)
    assert elsewhere(sa.select(Customer.name).where(Customer.id == 1)) == [("Zoe",)]


def test_an_adopted_lock_opens_no_snapshot(run: Run, elsewhere: Elsewhere) -> None:
    """On MySQL a read from information_schema does."""

    def play(engine: sa.Engine) -> str:
        with LockingSession(engine) as session:
            session.scalars(sa.select(Order).with_for_update()).all()
            elsewhere(RENAMED)
            return name_of(session)

    expected = "Ann" if run(lambda engine: engine.dialect.name) == "postgresql" else "Zoe"
    assert run(play, **REPEATABLE_READ) == expected


def test_only_to_ask_begins_nothing(run: Run, documents: Database) -> None:
    def play(engine: sa.Engine) -> None:
        with engine.connect() as lent:
            is_in_transaction = watch(documents, lent)
            strategy_for(lent)
            assert not lent.in_transaction()
            assert not is_in_transaction(lent)

    run(play)


def test_an_autocommit_connection_stays_one(run: Run, documents: Database) -> None:
    def play(engine: sa.Engine) -> None:
        autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        with autocommit.connect() as lent, LockingSession(lent) as session:
            is_in_transaction = watch(documents, lent)
            with pytest.raises(LockNotSupported, match="AUTOCOMMIT"):
                session.get_entity(Order, 1, ForUpdate)
            session.rollback()
            assert not is_in_transaction(lent)
            session.execute(RENAMED)
            assert not is_in_transaction(lent)
            session.rollback()
            assert name_of(session) == "Zoe"

    run(play)


def test_the_default_level_is_that_of_the_program_also_behind_its_transaction(run: Run) -> None:
    """It comes from another connection, set up by the same listeners."""
    set_level = "SET SESSION {} TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"

    def play(engine: sa.Engine) -> str | None:
        words = "CHARACTERISTICS AS" if engine.dialect.name == "postgresql" else ""

        def connected(connection: Any, _: object) -> None:
            with closing(connection.cursor()) as cursor:
                cursor.execute(set_level.format(words))
            connection.commit()

        sa.event.listen(engine, "connect", connected)
        with engine.connect() as lent:
            lent.execute(sa.select(Customer.id)).all()
            strategy_for(lent)
        return engine.dialect.default_isolation_level

    assert run(play) == "READ UNCOMMITTED"
