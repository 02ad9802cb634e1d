"""Changes: the edit screen, the tree, the schema; and several databases."""

from __future__ import annotations

import io
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.exc import CircularDependencyError, DBAPIError, OperationalError
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import CheckedOut, CheckoutLost, StaleDocument
from tests.recipes.conftest import Recipe, text_of_program
from tests.recipes.load import at_once, breaks, without
from tests.recipes.load import start as start_schema_change
from tests.support.databases import Database

# --------------------------------------------------------------------------------------------------
# Changes: the edit screen, the tree, the schema.

# --------------------------------------------------------------------------------------------------
# An edit screen computes from the stored values, and does not overwrite anyone's change.

WITHOUT = {
    "version": ("ident, version=version)", "ident)"),
    "check-out": ("session.check_out(Order, ident, user)", "session.take_over(Order, ident, user)"),
}


def add_by_version(program: Any) -> None:
    total, version = program.show(1)
    program.save(1, total + 1, version)


def add_by_check_out(program: Any, user: str) -> None:
    total, epoch = program.check_out(1, user)
    program.check_in(1, user, total + 1, epoch)


def start(program: Any) -> None:
    with program.Session.begin() as session, session.unguarded():
        session.execute(sa.delete(program.table))
        session.execute(sa.delete(program.Order))
        session.add(program.Order(id=1, total=0))


def load_versions(program: Any) -> None:
    start(program)
    answers = at_once([partial(add_by_version, program)] * 60, StaleDocument)
    saved = without(StaleDocument, of=answers)
    assert saved
    assert program.show(1)[0] == len(saved)


def load_check_outs(program: Any) -> None:
    start(program)
    users = [partial(add_by_check_out, program, f"user {n}") for n in range(60)]
    answers = at_once(users, CheckedOut)
    saved = without(CheckedOut, of=answers)
    assert saved
    assert program.show(1)[0] == len(saved)


@pytest.mark.slow
def test_a_version_keeps_who_has_seen_an_older_one_from_saving(recipe: Recipe) -> None:
    load_versions(recipe("edit-screen"))


@pytest.mark.slow
def test_a_check_out_keeps_the_others_out(recipe: Recipe) -> None:
    load_check_outs(recipe("edit-screen"))


@pytest.mark.databases("postgresql")
def test_without_the_version_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("edit-screen", WITHOUT["version"])
    assert breaks(lambda: load_versions(program), StaleDataError)


@pytest.mark.databases("postgresql")
def test_without_the_check_out_work_is_in_vain(recipe: Recipe) -> None:
    program = recipe("edit-screen", WITHOUT["check-out"])
    assert breaks(lambda: load_check_outs(program), CheckoutLost)


def test_who_guesses_the_epoch_saves_nothing(recipe: Recipe) -> None:
    program = recipe("edit-screen")
    start(program)
    total, epoch = program.check_out(1, "ann")
    for guess in range(epoch + 2):
        with pytest.raises(CheckoutLost):
            program.check_in(1, "bob", total + 1, guess)
    program.check_in(1, "ann", total + 2, epoch)
    assert program.show(1)[0] == total + 2


# --------------------------------------------------------------------------------------------------
# A tree: each total is the cost plus the children's totals, and no project is its own descendant.

ROOTS, LEAVES = (1, 2), tuple(range(3, 10))
IN_A_CIRCLE = (  # the walk ends there too
    "    while project is not None:",
    "    for _ in range(99):\n        if project is None:\n            return",
)


def load(program: Any) -> None:
    with program.Session.begin() as session:
        session.execute(sa.update(program.Project).values(parent_id=None))
        session.execute(sa.delete(program.Project))
        session.add_all(program.Project(id=root, root_id=root) for root in ROOTS)
        session.flush()
        session.add_all(
            program.Project(id=leaf, root_id=1 + leaf % 2, parent_id=1 + leaf % 2)
            for leaf in LEAVES
        )
    calls = [partial(program.add_cost, leaf, 5) for leaf in LEAVES for _ in range(3)]
    for _ in range(25):
        calls.append(partial(program.move, *random.sample((*ROOTS, *LEAVES), 2)))
        if calls[-1].args[0] in ROOTS:
            calls.pop()
    at_once(calls, ValueError)
    with program.Session() as session:
        found = {p.id: p for p in session.scalars(sa.select(program.Project))}
    for project in found.values():
        below = sum(p.total for p in found.values() if p.parent_id == project.id)
        assert project.total == project.cost + below
        above = project
        for _ in found:  # no circle: the walk reaches the root
            above = found[above.parent_id] if above.parent_id else above
        assert above.id == project.root_id
    assert sum(found[root].total for root in ROOTS) == 5 * 3 * len(LEAVES)


@pytest.mark.slow
def test_totals_and_roots_are_right(recipe: Recipe) -> None:
    load(recipe("tree"))


@pytest.mark.databases("postgresql")
def test_without_the_lock_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("tree", ("LockOptions.ForUpdate", "LockOptions.None_"), IN_A_CIRCLE)
    assert breaks(lambda: load(program), DBAPIError, CircularDependencyError)


# --------------------------------------------------------------------------------------------------
# A schema change under load: no one waits behind a waiting migration.

#: For the program's statements: longer than the migration's one second, to allow for a busy machine.
PATIENCE = {
    "postgresql": "SET lock_timeout = '8s'",
    "mysql": "SET SESSION lock_wait_timeout = 8",
    "mariadb": "SET SESSION lock_wait_timeout = 8",
}
QUEUES = ("op.execute(limit)", "pass")
KILLED = """

import os
import signal
from types import SimpleNamespace

from alembic.migration import MigrationContext
from alembic.operations import Operations

time = SimpleNamespace(sleep=lambda _: os.kill(os.getpid(), signal.SIGKILL))
with sa.create_engine("sqlite:///shop.db").connect() as connection:
    with Operations.context(MigrationContext.configure(connection)):
        upgrade()
"""


@pytest.fixture
def table(database: Database) -> sa.Table:
    metadata = sa.MetaData()
    columns = sa.Column("id", sa.Integer, primary_key=True), sa.Column("total", sa.Integer)
    table = sa.Table("orders", metadata, *columns)
    database.create(metadata)
    with database.engine().begin() as connection:
        connection.execute(table.insert().values(id=1, total=0))
    return table


def migrate_under_load(program: Any, database: Database, table: sa.Table) -> None:
    """Migrate while a report reads the table and a program writes it."""
    paused = threading.Event()
    program.time = SimpleNamespace(sleep=lambda _: paused.set())
    program.patiently.__defaults__ = (100_000, 0.0)

    def migrate() -> None:
        with database.engine().connect() as connection:
            with Operations.context(MigrationContext.configure(connection)):
                program.upgrade()
            connection.commit()

    with (
        database.engine().connect() as report,
        database.engine().connect() as writer,
        ThreadPoolExecutor(1) as thread,
    ):
        report.execute(sa.select(table)).all()
        migration = thread.submit(migrate)
        try:
            paused.wait(3)  # it waited once; without its limit it still waits
            writer.exec_driver_sql(PATIENCE[database.name])
            for _ in range(3):
                writer.execute(table.update().values(total=table.c.total + 1))
                writer.commit()
        finally:
            writer.rollback()
            writer.invalidate()  # with its limit
            report.rollback()
            migration.result(60)
    found = sa.inspect(database.engine()).get_columns("orders")
    assert [one["name"] for one in found] == ["id", "total", "note"]


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.not_databases("postgresql-pipeline")
@pytest.mark.slow
def test_the_program_goes_on(recipe: Recipe, database: Database, table: sa.Table) -> None:
    migrate_under_load(recipe("schema-change"), database, table)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.not_databases("postgresql-pipeline")
@pytest.mark.slow
def test_after_one_that_was_killed(
    recipe: Recipe, database: Database, table: sa.Table, tmp_path: Path
) -> None:
    with database.engine().connect() as report:
        report.execute(sa.select(table)).all()
        killed = start_schema_change(
            text_of_program("schema-change") + KILLED, database.url, tmp_path
        )
        assert killed.wait(60) == -signal.SIGKILL
    migrate_under_load(recipe("schema-change"), database, table)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.not_databases("postgresql-pipeline")
@pytest.mark.slow
def test_one_that_never_gets_its_turn_says_so(
    recipe: Recipe, database: Database, table: sa.Table
) -> None:
    program = recipe("schema-change")
    program.time = SimpleNamespace(sleep=lambda _: None)
    program.patiently.__defaults__ = (1, 0.0)
    with database.engine().connect() as report, database.engine().connect() as connection:
        report.execute(sa.select(table)).all()
        context = Operations.context(MigrationContext.configure(connection))
        with context, pytest.raises(OperationalError):
            program.upgrade()
        connection.invalidate()


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.not_databases("postgresql-pipeline")
@pytest.mark.slow
@pytest.mark.databases("postgresql")
def test_without_the_limit_it_goes_wrong(
    recipe: Recipe, database: Database, table: sa.Table
) -> None:
    program = recipe("schema-change", QUEUES)
    with pytest.raises(OperationalError):
        migrate_under_load(program, database, table)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.not_databases("postgresql-pipeline")
@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("other", ["sqlite", "mssql"])
def test_a_database_without_a_limit_is_refused(recipe: Recipe, other: str) -> None:
    program = recipe("schema-change")
    written = io.StringIO()
    options = {"as_sql": True, "output_buffer": written}
    context = MigrationContext.configure(dialect_name=other, opts=options)
    with (
        Operations.context(context),
        pytest.raises(NotImplementedError, match=f"LIMITS has no lock timeout for {other}"),
    ):
        program.upgrade()
    assert written.getvalue() == ""


# --------------------------------------------------------------------------------------------------
# Several databases: two of them, and read replicas.

# --------------------------------------------------------------------------------------------------
# Two databases: in the end each order takes its quantity once, whoever dies in between.

ORDERS, STOCK = range(1, 31), 1000


class Crash(Exception):
    """The worker dies between the two commits."""


def load_databases(program: Any) -> None:
    with program.WarehouseSession.begin() as session:
        session.execute(sa.delete(program.Booking))
        session.merge(program.Stock(item=1, quantity=STOCK))
    with program.ShopSession.begin() as session:
        session.execute(sa.delete(program.Order))
        session.add_all(program.Order(id=n, item=1, quantity=n) for n in ORDERS)
    book = program.book

    def book_and_die(*order: int) -> None:
        book(*order)
        if random.random() < 0.2:
            raise Crash

    program.book = book_and_die
    at_once([program.book_all] * 16, Crash)
    program.book = book
    program.book_all()
    with program.WarehouseSession() as session:
        assert session.get_one(program.Stock, 1).quantity == STOCK - sum(ORDERS)
    with program.ShopSession() as session:
        assert not session.scalars(sa.select(program.Order).where(~program.Order.booked)).all()


@pytest.mark.slow
@pytest.mark.not_databases(
    "sqlite", "sqlite-journal"
)  # they would share one file; the page's own sample has two
def test_each_order_is_booked_once(recipe: Recipe) -> None:
    load_databases(recipe("two-databases"))


@pytest.mark.databases("postgresql")
def test_without_the_key_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("two-databases", ("if created:", "if True:"))
    assert breaks(lambda: load_databases(program))


# --------------------------------------------------------------------------------------------------
# Read replicas: a report's total always matches its lines, and includes one's own writes.


def load_read_replicas(program: Any) -> None:
    with program.Session.begin() as session, session.unguarded():
        session.execute(sa.delete(program.Line))
        session.execute(sa.delete(program.Order))
        session.add(program.Order(id=1))

    def write_and_read() -> Any:
        return program.read(1, at_least=program.add_line(1, 7))

    answers = at_once([write_and_read, partial(program.read, 1), partial(program.read, 1)] * 20)
    for answer in answers:
        assert answer["total"] == sum(answer["lines"])
    assert len(program.read(1)["lines"]) == 20


@pytest.mark.slow
def test_a_report_is_of_one_moment(recipe: Recipe) -> None:
    load_read_replicas(recipe("read-replicas"))


@pytest.mark.databases("postgresql")
def test_without_the_snapshot_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("read-replicas", ("LockOptions.SnapshotRead", "LockOptions.None_"))
    assert breaks(lambda: load_read_replicas(program))
