"""Sales: the flash sale, the stock, and many tenants."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from lab.running.processes import forked
from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.docs.programs import empty_database
from tests.recipes.conftest import OPTIONS, Recipe, text_of_program
from tests.recipes.load import WORKERS, at_once, breaks, start, without
from tests.support.databases import Database

# --------------------------------------------------------------------------------------------------
# A flash sale: as many tickets as seats, each with its own number.

SEATS, CALLERS, MANY = 50, 64, 2000
UNLOCKED = """\
    with Session() as session:
        number = buy(session, session.get_one(Concert, ident))
        session.commit()
        return number"""


def load(program: Any) -> None:
    with program.Session.begin() as session:
        session.merge(program.Concert(id=1, free=SEATS, sold=0))
    answers = at_once([partial(program.buy_ticket, 1)] * CALLERS, program.SoldOut)
    assert sorted(without(program.SoldOut, of=answers)) == list(range(1, SEATS + 1))
    with program.Session() as session:
        found = session.execute(sa.select(program.Concert.free, program.Concert.sold)).one()
        assert tuple(found) == (0, SEATS)


def test_each_ticket_has_a_number_of_its_own(recipe: Recipe) -> None:
    load(recipe("counter"))


def load_and_kill(
    program: Any, database: Database, text: str, chance: random.Random, processes: int = 2
) -> None:
    """Sell in several processes that are killed; then sell the rest."""
    with program.Session.begin() as session:
        session.merge(program.Concert(id=1, free=MANY, sold=0))
    options = {**OPTIONS.get(database.name, {})}
    options["connect_args"] = {**database.connect_args, **options.get("connect_args", {})}
    sold: list[int] = []
    with ExitStack() as stack:
        arguments = text, database.url, json.dumps(options)
        running = [
            stack.enter_context(forked("tests.recipes.selling_process", *arguments))
            for _ in range(processes)
        ]
        for process in running:
            sold += [int(process.next_line()) for _ in range(chance.randint(5, 40))]
            process.kill()
            sold += [int(line) for line in process.output.readlines() if line.endswith("\n")]
    with program.Session() as session:
        free, taken = session.execute(
            sa.select(program.Concert.free, program.Concert.sold).with_for_update()
        ).one()
    assert free + taken == MANY
    assert free >= 0
    assert len(sold) == len(set(sold))  # no ticket has two owners
    assert max(sold) <= taken  # every ticket with an owner counts as sold
    answers = at_once([partial(program.buy_ticket, 1)] * (free + 5), program.SoldOut)
    assert sorted(without(program.SoldOut, of=answers)) == list(range(taken + 1, MANY + 1))


def test_of_processes_that_are_killed_no_ticket_is_lost_or_sold_twice(
    recipe: Recipe, database: Database
) -> None:
    load_and_kill(recipe("counter"), database, text_of_program("counter"), random.Random(1))


@pytest.mark.databases("postgresql")
def test_of_processes_without_the_lock_it_goes_wrong(recipe: Recipe, database: Database) -> None:
    change = ("    return gate.run(Session, Concert, ident, buy, lock_timeout=10)", UNLOCKED)
    program, text = recipe("counter", change), text_of_program("counter").replace(*change)
    chance = random.Random(1)
    assert breaks(lambda: load_and_kill(program, database, text, chance))


@pytest.mark.databases("postgresql")
def test_without_the_gate_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe(
        "counter", ("    return gate.run(Session, Concert, ident, buy, lock_timeout=10)", UNLOCKED)
    )
    assert breaks(lambda: load(program))


# --------------------------------------------------------------------------------------------------
# Stock: remaining plus reserved equals the initial stock, and stock never goes below zero.

ITEMS, STOCK = (1, 2, 3), 20
WITHOUT = {
    "the lock": ("LockOptions.ForUpdate", "LockOptions.None_"),
    "the condition": (", Item.stock >= quantity)", ", Item.stock >= 0)"),
}


def load_stock(program: Any) -> None:
    with program.Session.begin() as session:
        for table in (program.Reservation, program.Item):
            session.execute(sa.delete(table))
        session.add_all(program.Item(id=ident, stock=STOCK) for ident in ITEMS)
    baskets = ({3: 1, 1: 2}, {1: 1, 2: 1, 3: 1}, {2: 3}, {2: 1, 1: 1})
    calls = [partial(program.reserve, basket) for basket in baskets for _ in range(8)]
    calls += [partial(program.take, ident, 1) for ident in ITEMS for _ in range(8)]
    at_once(calls, program.SoldOut)
    with program.Session() as session:
        for item in session.scalars(sa.select(program.Item)):
            reserved = session.scalar(
                sa.select(sa.func.sum(program.Reservation.quantity)).where(
                    program.Reservation.item_id == item.id
                )
            )
            assert item.stock >= 0
            assert item.stock + reserved == STOCK


def test_what_is_reserved_was_there(recipe: Recipe) -> None:
    program = recipe("stock")
    load_stock(program)


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("what", WITHOUT)
def test_without_it_goes_wrong(recipe: Recipe, what: str) -> None:
    program = recipe(
        "stock", WITHOUT[what], ('CheckConstraint("stock >= 0")', 'CheckConstraint("1 = 1")')
    )
    assert breaks(lambda: load_stock(program), DBAPIError)


# --------------------------------------------------------------------------------------------------
# Many tenants: order 1 of each is a separate row, for locks and for totals.

TENANTS = ("ann", "bob")
TIMES = 20
UNLOCKED_TENANTS = (
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


def load_tenants(add: Add) -> None:
    before = {tenant: add(tenant, 0) for tenant in TENANTS}
    at_once([partial(add, tenant, n) for tenant, n in zip(TENANTS, (1, 2), strict=True)] * TIMES)
    for n, tenant in enumerate(TENANTS, 1):
        assert add(tenant, 0) == before[tenant] + n * TIMES


def load_and_kill_tenants(way: str, program: Any, add: Add, text: str, folder: Path) -> None:
    """Add in processes that are killed while they hold a row, and in this process, which continues."""
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
        load_tenants(add)


@ON_SERVERS
def test_no_tenant_loses_a_change_in_its_schema(recipe: Recipe, of_way: Callable[..., Any]) -> None:
    with of_way("schema", recipe("tenants")) as (add, _open, _entity):
        load_tenants(add)


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.parametrize("way", ["column", "database"])
def test_who_is_killed_leaves_the_tenants_sums_right(
    recipe: Recipe, of_way: Callable[..., Any], way: str, tmp_path: Path
) -> None:
    program = recipe("tenants")
    with of_way(way, program) as (add, _open, _entity):
        load_and_kill_tenants(way, program, add, text_of_program("tenants"), tmp_path / "1")


@pytest.mark.slow
@ON_SERVERS
def test_who_is_killed_leaves_the_sums_of_each_schema_right(
    recipe: Recipe, of_way: Callable[..., Any], tmp_path: Path
) -> None:
    program = recipe("tenants")
    with of_way("schema", program) as (add, _open, _entity):
        load_and_kill_tenants("schema", program, add, text_of_program("tenants"), tmp_path / "1")


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
    with of_way(way, recipe("tenants", *UNLOCKED_TENANTS)) as (add, _open, _entity):
        assert breaks(lambda: load_tenants(add))


@pytest.mark.slow
@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("way", WAYS)
def test_killed_without_the_lock_it_goes_wrong(
    recipe: Recipe, of_way: Callable[..., Any], way: str, tmp_path: Path
) -> None:
    program, text = recipe("tenants", *UNLOCKED_TENANTS), text_of_program("tenants")
    for change in UNLOCKED_TENANTS:
        text = text.replace(*change)
    folders = (tmp_path / str(n) for n in count())
    with of_way(way, program) as (add, _open, _entity):
        assert breaks(lambda: load_and_kill_tenants(way, program, add, text, next(folders)))
