"""explore() finds each of the seeded races, and none where they are cured."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from sa_doclock import (
    AsyncLockingSession,
    DeadlockDetected,
    DocumentGate,
    LockingSession,
    LockOptions,
)
from sa_doclock.testing import Exploration, Outcome, explore
from tests.integration.asyncio.drivers import PATIENT, drivers_of, url_for
from tests.integration.testing.races import RACES, Race
from tests.integration.testing.test_two_at_once import Endpoint, Shop
from tests.support.databases import Database
from tests.support.models import Customer, Order

pytestmark = pytest.mark.read_committed

ForUpdate = LockOptions.ForUpdate
Elsewhere = Callable[..., list[Any]]
TOTAL = sa.select(Order.total).where(Order.id == 1)


@pytest.fixture
def shop(engine: sa.Engine) -> Shop:
    return Shop(
        sessionmaker(engine, class_=LockingSession),
        sessionmaker(engine),
        sessionmaker(engine.execution_options(isolation_level="AUTOCOMMIT"), class_=Session),
        cached_total=30,
    )


Explore = Callable[..., Exploration]


@pytest.fixture
def explore_race(shop: Shop, elsewhere: Elsewhere, start_over: Callable[[], None]) -> Explore:
    """Return a function that explores a race."""

    def run(race: Race, functions: tuple[Endpoint, Endpoint], **options: Any) -> Exploration:
        def holds(first: Outcome, second: Outcome) -> bool:
            return race.holds(elsewhere, first, second)

        first, second = (partial(one, shop, number) for number, one in enumerate(functions, 1))
        return explore(first, second, before=start_over, invariant=holds, **options)

    return run


def found_and_cured(explore_race: Explore, race: Race) -> None:
    found = explore_race(race, race.wrong)
    if "could not be forced" in found.incomplete_because:  # the machine is busy, and says so
        found = explore_race(race, race.wrong)
    assert found.complete, found.incomplete_because
    assert race.anomaly in {failure.anomaly for failure in found.failures}
    with pytest.raises(AssertionError, match=race.anomaly):
        found.check()
    (again,) = explore_race(race, race.wrong, order=found.failures[0].order).failures
    assert again.order == found.failures[0].order
    cured = explore_race(race, race.right)
    assert (cured.complete, cured.failures) == (True, ()), cured
    cured.check()


EACH_RACE = pytest.mark.parametrize("race", RACES, ids=[race.name for race in RACES])


@pytest.mark.databases("postgresql")
@EACH_RACE
def test_a_race_is_found_and_its_cure_holds(explore_race: Explore, race: Race) -> None:
    found_and_cured(explore_race, race)


@pytest.mark.slow
@pytest.mark.databases("mysql", "mariadb")
@EACH_RACE
def test_a_race_on_innodb(explore_race: Explore, race: Race) -> None:
    found_and_cured(explore_race, race)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.databases("sqlite")
@EACH_RACE
def test_a_race_on_sqlite(explore_race: Explore, race: Race) -> None:
    found_and_cured(explore_race, race)


@pytest.mark.databases("sqlite", "mysql", "mariadb")
def test_one_race_on_the_others(explore_race: Explore) -> None:
    # A wait is seen in another way there; the search for orders is the same.
    found_and_cured(explore_race, RACES[0])


def test_coroutine_functions(
    documents: Database,
    read_committed: dict[str, Any],
    elsewhere: Elsewhere,
    start_over: Callable[[], None],
) -> None:
    options = {**PATIENT.get(documents.name, {}), **read_committed}

    def is_right() -> bool:
        return bool(elsewhere(TOTAL) == [(50,)])

    for driver in drivers_of(documents.column):
        engine = create_async_engine(url_for(documents, driver), poolclass=NullPool, **options)

        async def add_ten(lock: LockOptions, engine: Any = engine) -> None:
            async with AsyncLockingSession(engine) as session:
                (await session.get_one_entity(Order, 1, lock)).total += 10
                await session.commit()

        for lock in (LockOptions.None_, ForUpdate):
            call = partial(add_ten, lock)
            result = explore(call, call, before=start_over, invariant=is_right)
            assert result.complete, result.incomplete_because
            assert bool(result.failures) == (lock is LockOptions.None_), result
        asyncio.run(engine.dispose())


@pytest.mark.databases("postgresql")
def test_a_commit_that_is_sent_with_the_write_before_it(
    engine: sa.Engine, elsewhere: Elsewhere, start_over: Callable[[], None]
) -> None:
    """Then the write is seen at once, and each order of it and a read is run."""

    def read() -> int:
        with Session(engine) as session:
            return session.scalars(TOTAL).one()

    def write() -> None:
        with LockingSession(engine, pipeline=True) as session:
            session.get_one(Order, 1).total = 40
            session.commit()

    def is_new(_: Outcome, reader: Outcome) -> bool:
        return bool(reader.value == 40)

    result = explore(write, read, before=start_over, invariant=is_new)
    assert result.complete, result.incomplete_because
    assert (result.runs, len(result.failures)) == (2, 1)
    assert elsewhere(TOTAL) == [(40,)]


def lock_both(shop: Shop, *idents: int) -> None:
    with shop.locking() as session, session.begin():
        for ident in idents:
            session.get_one_entity(Order, ident, ForUpdate).total += 10


def set_deadlock_timeout(connection: Any, _: object) -> None:
    connection.execute("SET deadlock_timeout = '50ms'")
    connection.commit()


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_deadlock_is_an_outcome_unless_the_invariant_says_otherwise(
    shop: Shop, engine: sa.Engine, start_over: Callable[[], None]
) -> None:
    if engine.dialect.name == "postgresql":  # one second is its default
        sa.event.listen(engine, "connect", set_deadlock_timeout)

    def no_error(first: Outcome, second: Outcome) -> None:
        first.result()
        second.result()

    run = partial(
        explore, partial(lock_both, shop, 1, 2), partial(lock_both, shop, 2, 1), before=start_over
    )
    assert run(invariant=lambda: True).failures == ()
    failures = run(invariant=no_error).failures
    assert {failure.anomaly for failure in failures} == {"deadlock"}
    assert isinstance(failures[0].error, DeadlockDetected)
    assert "waits for the " in failures[0].timeline
    assert "deadlock" in failures[0].timeline.lower()


@pytest.mark.databases("sqlite", "postgresql")
def test_the_timeline_names_the_lines_of_the_program_and_what_was_seen(
    explore_race: Explore,
) -> None:
    race = next(race for race in RACES if race.name == "computed-here")
    failure = explore_race(race, race.wrong).failures[0]
    assert "tests/integration/testing/test_two_at_once.py:" in failure.timeline
    assert "-> (30,)" in failure.timeline
    assert "-> 1 row" in failure.timeline
    assert "waits for the first" in failure.timeline
    assert "sa_doclock/" not in failure.timeline


@pytest.mark.databases("sqlite", "postgresql")
def test_complete_is_false_where_orders_are_left(explore_race: Explore) -> None:
    result = explore_race(RACES[0], RACES[0].right, orders=2)
    assert (result.runs, result.complete) == (2, False)
    assert result.incomplete_because == "orders=2 was not enough"
    with pytest.warns(RuntimeWarning, match="orders=2 was not enough"):
        result.check()


@pytest.mark.databases("sqlite", "postgresql")
def test_complete_is_false_where_a_gate_decides_who_is_first(
    engine: sa.Engine, start_over: Callable[[], None]
) -> None:
    gate = DocumentGate()

    def add() -> None:
        with LockingSession(engine, gate=gate) as session, session.locked(Order, 1) as order:
            order.total += 10

    result = explore(add, add, before=start_over, invariant=lambda: True)
    assert not result.complete
    assert "at a gate" in result.incomplete_because


@pytest.mark.databases("sqlite", "postgresql")
def test_callers_of_gate_run_lose_nothing_in_any_order(
    engine: sa.Engine, start_over: Callable[[], None], elsewhere: Elsewhere
) -> None:
    gate, sessions = DocumentGate(), sessionmaker(engine, class_=LockingSession)

    def add(_session: Session, order: Order) -> None:
        order.total += 10

    def run() -> None:
        gate.run(sessions, Order, 1, add)

    def by_hand() -> None:
        with sessions() as session, session.locked(Order, 1) as order:
            order.total += 10

    for second in (run, by_hand):
        result = explore(
            run, second, before=start_over, invariant=lambda: elsewhere(TOTAL) == [(50,)]
        )
        assert result.runs
        assert not result.failures


@pytest.mark.databases("postgresql")
def test_complete_is_false_where_a_program_goes_another_way_each_time(
    shop: Shop, start_over: Callable[[], None]
) -> None:
    """The calls before decide about its statements, which no order can force."""
    calls: list[None] = []

    def fickle() -> None:
        calls.append(None)
        with shop.plain() as session:
            session.get_one(Order, 1 + len(calls) % 2, with_for_update=len(calls) % 2 == 0)
            session.get_one(Order, 1).total += 1
            session.commit()

    result = explore(
        fickle, partial(lock_both, shop, 1), before=start_over, invariant=lambda: True, orders=50
    )
    assert not result.complete
    assert "could not be forced" in result.incomplete_because


@pytest.mark.databases("postgresql")
def test_a_view_hides_no_conflict(
    shop: Shop, start_over: Callable[[], None], elsewhere: Elsewhere
) -> None:
    elsewhere(sa.text("CREATE VIEW lk_hidden AS SELECT * FROM lk_order"))
    try:

        def lock_through_the_view() -> None:
            with shop.plain() as session:
                session.execute(sa.text("SELECT id FROM lk_hidden WHERE id = 1 FOR UPDATE"))
                session.commit()

        first = partial(lock_both, shop, 1)
        result = explore(first, lock_through_the_view, before=start_over, invariant=lambda: True)
        assert result.runs > 1
        assert result.complete, result.incomplete_because
    finally:
        elsewhere(sa.text("DROP VIEW lk_hidden"))


_TRIGGER = """
CREATE FUNCTION lk_count() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN UPDATE lk_order SET total = total + 1 WHERE id = 1; RETURN NEW; END $$
"""


@pytest.mark.databases("postgresql")
def test_complete_is_false_where_a_wait_shows_a_table_that_no_statement_names(
    shop: Shop, start_over: Callable[[], None], elsewhere: Elsewhere
) -> None:
    """A trigger writes a row that the other function locks."""

    def rename() -> None:
        with shop.plain() as session:
            session.get_one(Customer, 1).name = "Eve"
            session.commit()

    run = partial(
        explore, rename, partial(lock_both, shop, 1), before=start_over, invariant=lambda: True
    )
    elsewhere(
        sa.text(_TRIGGER),
        sa.text(
            "CREATE TRIGGER lk_counted BEFORE UPDATE ON lk_customer FOR EACH ROW "
            "EXECUTE FUNCTION lk_count()"
        ),
    )
    try:
        hidden = run()
        assert not hidden.complete
        assert "reduce=False runs all orders" in hidden.incomplete_because
        every = run(reduce=False)
        assert every.runs > hidden.runs
        assert every.complete, every.incomplete_because
    finally:
        elsewhere(
            sa.text("DROP TRIGGER lk_counted ON lk_customer"), sa.text("DROP FUNCTION lk_count")
        )


@pytest.mark.databases("sqlite")
def test_an_error_of_a_function_alone_is_raised(start_over: Callable[[], None]) -> None:
    def fails() -> None:
        raise KeyError("typo")

    with pytest.raises(KeyError, match="typo"):
        explore(fails, fails, before=start_over, invariant=lambda: True)


@pytest.mark.databases("sqlite")
def test_bad_arguments(start_over: Callable[[], None]) -> None:
    def nothing() -> None:
        pass

    run = partial(explore, nothing, nothing, before=start_over, invariant=lambda: True)
    with pytest.raises(ValueError, match="order must consist of 1 and 2"):
        run(order="12x")
    with pytest.raises(ValueError, match="orders must be at least 1"):
        run(orders=0)
    with pytest.raises(TypeError, match="first must be a function"):
        explore(None, nothing, before=start_over, invariant=nothing)  # type: ignore[arg-type]


@pytest.mark.databases("sqlite")
def test_progress_of_a_long_exploration(
    explore_race: Explore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("doclock_audit.exploration.explorer._SECONDS_TO_PROGRESS", 0.0)
    lines: list[str] = []
    explore_race(RACES[0], RACES[0].right, progress=lines.append)
    assert re.match(r"explore: 1 orders in \d+ s, 0 failures", lines[0])
