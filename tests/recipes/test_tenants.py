"""Many tenants: order 1 of each is a row of its own, for locks as for totals."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.docs.programs import empty_database
from tests.recipes.conftest import OPTIONS, Recipe, text_of_program
from tests.recipes.load import WORKERS, at_once, breaks, start
from tests.support.databases import Database

TENANTS = ("ann", "bob")
TIMES = 20
UNLOCKED = (
    (
        "with session, session.locked(Order, ident) as order:",
        "with session, session.begin():\n        order = session.get_one(Order, ident)",
    ),
    (
        "with LockingSession(engine) as session, session.locked(Invoice, (tenant, number)) as invoice:",
        """with LockingSession(engine) as session, session.begin():
        invoice = session.get_one(Invoice, (tenant, number))""",
    ),
)
ADD_ONE = {
    "column": "add_to_invoice(tenant, 1, 1)",
    "database": "add_to_order(in_database_of(tenant), 1, 1)",
    "schema": "add_to_order(in_schema_of(tenant), 1, 1)",
}
KILLED = """

import os
import signal
from itertools import count, cycle

from sqlalchemy import event

flushes = count(1)


@event.listens_for(LockingSession, "after_flush")
def die(_session, _context):
    if next(flushes) == 20 + os.getpid() % 2:
        os.kill(os.getpid(), signal.SIGKILL)  # it holds a row, which it has changed


with open(f"answers {os.getpid()}", "w", buffering=1) as answers:
    for tenant in cycle(("ann", "bob")):
        ADD_ONE
        answers.write(f"{tenant}\\n")
"""
Add = Callable[[str, int], int]
Open = Callable[[str], LockingSession]


def by_column(program: Any, _database: Database) -> Iterator[tuple[Add, Open, Any]]:
    with LockingSession(program.engine) as session, session.begin():
        session.add_all(program.Invoice(tenant=tenant, number=1) for tenant in TENANTS)

    def add(tenant: str, value: int) -> int:
        return int(program.add_to_invoice(tenant, 1, value))

    yield add, lambda _: LockingSession(program.engine), program.Invoice


def by_database(program: Any, database: Database) -> Iterator[tuple[Add, Open, Any]]:
    with empty_database(database) as found:
        url = found.set(database=f"{found.database}.bob") if database.name == "sqlite" else found
        other = sa.create_engine(url, pool_size=20, **OPTIONS.get(database.name, {}))
        program.Base.metadata.create_all(other)
        program.databases.update(bob=other)
        yield from orders(program, program.in_database_of)
        other.dispose()


def by_schema(program: Any, database: Database) -> Iterator[tuple[Add, Open, Any]]:
    drop = "DROP SCHEMA IF EXISTS {}" + (" CASCADE" if database.name == "postgresql" else "")
    engine = program.engine
    for tenant in TENANTS:
        with engine.begin() as connection:
            connection.exec_driver_sql(drop.format(tenant))
            connection.exec_driver_sql(f"CREATE SCHEMA {tenant}")
        mapped = engine.execution_options(schema_translate_map={None: tenant})
        program.Base.metadata.create_all(mapped)
    yield from orders(program, program.in_schema_of)
    for tenant in TENANTS:
        with engine.begin() as connection:
            connection.exec_driver_sql(drop.format(tenant))


def orders(program: Any, open_session: Open) -> Iterator[tuple[Add, Open, Any]]:
    for tenant in TENANTS:
        with open_session(tenant) as session, session.begin():
            session.add(program.Order(id=1))

    def add(tenant: str, value: int) -> int:
        return int(program.add_to_order(open_session(tenant), 1, value))

    yield add, open_session, program.Order


WAYS = {"column": by_column, "database": by_database, "schema": by_schema}
ON_SERVERS = pytest.mark.not_databases("sqlite", "sqlite-journal")


@pytest.fixture
def of_way(database: Database) -> Callable[..., Any]:
    return contextmanager(lambda way, program: WAYS[way](program, database))


def load(add: Add) -> None:
    before = {tenant: add(tenant, 0) for tenant in TENANTS}
    at_once([partial(add, tenant, n) for tenant, n in zip(TENANTS, (1, 2), strict=True)] * TIMES)
    for n, tenant in enumerate(TENANTS, 1):
        assert add(tenant, 0) == before[tenant] + n * TIMES


def load_and_kill(way: str, program: Any, add: Add, text: str, folder: Path) -> None:
    """Add by processes that are killed while they hold a row, and by this one, which goes on."""
    folder.mkdir()
    expected = Counter({tenant: add(tenant, 0) for tenant in TENANTS})
    for name, bind in {"shop": program.engine, **program.databases}.items():
        url = bind.url.render_as_string(hide_password=False)
        text = text.replace(f"sqlite:///{name}.db", url)
    text += KILLED.replace("ADD_ONE", ADD_ONE[way])
    killed = [start(text, "", folder) for _ in range(WORKERS)]
    alive = True
    while alive:
        alive = any(worker.poll() is None for worker in killed)
        at_once([partial(add, tenant, 1) for tenant in TENANTS] * TIMES)
        expected.update(dict.fromkeys(TENANTS, TIMES))
    assert [worker.wait() for worker in killed] == [-signal.SIGKILL] * WORKERS
    for answers in folder.glob("answers *"):
        expected.update(answers.read_text(encoding="utf-8").split())
    assert {tenant: add(tenant, 0) for tenant in TENANTS} == expected


@pytest.mark.parametrize("way", ["column", "database"])
def test_no_tenant_loses_a_change(recipe: Recipe, of_way: Callable[..., Any], way: str) -> None:
    with of_way(way, recipe("tenants")) as (add, _open, _entity):
        load(add)


@ON_SERVERS
def test_no_tenant_loses_a_change_in_its_schema(recipe: Recipe, of_way: Callable[..., Any]) -> None:
    with of_way("schema", recipe("tenants")) as (add, _open, _entity):
        load(add)


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.parametrize("way", ["column", "database"])
def test_who_is_killed_leaves_the_tenants_sums_right(
    recipe: Recipe, of_way: Callable[..., Any], way: str, tmp_path: Path
) -> None:
    program = recipe("tenants")
    with of_way(way, program) as (add, _open, _entity):
        load_and_kill(way, program, add, text_of_program("tenants"), tmp_path / "1")


@pytest.mark.slow
@ON_SERVERS
def test_who_is_killed_leaves_the_sums_of_each_schema_right(
    recipe: Recipe, of_way: Callable[..., Any], tmp_path: Path
) -> None:
    program = recipe("tenants")
    with of_way("schema", program) as (add, _open, _entity):
        load_and_kill("schema", program, add, text_of_program("tenants"), tmp_path / "1")


@ON_SERVERS
@pytest.mark.parametrize("way", WAYS)
def test_a_lock_is_of_one_tenant(recipe: Recipe, of_way: Callable[..., Any], way: str) -> None:
    lock = LockOptions.ForUpdate | LockOptions.NoWait
    with of_way(way, recipe("tenants")) as (_add, open_session, entity):
        keys = {tenant: (tenant, 1) if way == "column" else 1 for tenant in TENANTS}
        with open_session("ann") as ann, open_session("bob") as bob, open_session("ann") as other:
            ann.get_one_entity(entity, keys["ann"], lock)
            bob.get_one_entity(entity, keys["bob"], lock)
            with pytest.raises(LockNotAvailable):
                other.get_one_entity(entity, keys["ann"], lock)


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("way", WAYS)
def test_without_the_lock_it_goes_wrong(
    recipe: Recipe, of_way: Callable[..., Any], way: str
) -> None:
    with of_way(way, recipe("tenants", *UNLOCKED)) as (add, _open, _entity):
        assert breaks(lambda: load(add))


@pytest.mark.slow
@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("way", WAYS)
def test_killed_without_the_lock_it_goes_wrong(
    recipe: Recipe, of_way: Callable[..., Any], way: str, tmp_path: Path
) -> None:
    program, text = recipe("tenants", *UNLOCKED), text_of_program("tenants")
    for change in UNLOCKED:
        text = text.replace(*change)
    folders = (tmp_path / str(n) for n in count())
    with of_way(way, program) as (add, _open, _entity):
        assert breaks(lambda: load_and_kill(way, program, add, text, next(folders)))
