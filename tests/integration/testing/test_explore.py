"""explore() finds each of the seeded race conditions, and none in the cured programs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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
from tests.integration.testing import test_two_at_once as endpoints
from tests.integration.testing.test_two_at_once import Endpoint, Shop
from tests.support.databases import Database
from tests.support.models import Customer, Line, Order

pytestmark = pytest.mark.read_committed

# --------------------------------------------------------------------------------------------------
# Eleven pairs of functions that fail in some statement orders, each with its fix.

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Elsewhere = Callable[..., list[Any]]
BOTH_TOTALS = sa.select(Order).where(Order.id.in_([1, 2])).order_by(Order.id)
FIRST_LINE = 100
MOST_LINES = 3
LIMIT = 30


class Race(NamedTuple):
    """A wrong program and the correct one.

    :ivar anomaly: of the wrong program.
    :ivar holds: whether the data and both results are correct.
    """

    name: str
    anomaly: str
    wrong: tuple[Endpoint, Endpoint]
    right: tuple[Endpoint, Endpoint]
    holds: Callable[[Elsewhere, Outcome, Outcome], bool]


def one_total(elsewhere: Elsewhere, first: Outcome, second: Outcome) -> bool:
    succeeded = sum(one.error is None for one in (first, second))
    ((total,),) = elsewhere(sa.select(Order.total).where(Order.id == 1))
    return bool(total == 30 + 10 * succeeded)


# A value read by an earlier transaction.


def read_in_another_session(shop: Shop, number: int) -> None:
    with shop.plain() as reader:
        total = reader.get_one(Order, 1).total
    with shop.locking() as session, session.locked(Order, 1) as order:
        order.total = total + 10 * number


def lock_in_a_savepoint(shop: Shop, number: int) -> None:
    with shop.locking() as session:
        total = session.get_one(Order, 1).total
        savepoint = session.begin_nested()
        session.get_entity(Order, 1, ForUpdate)
        savepoint.rollback()
        session.get_one(Order, 1).total = total + 10 * number
        session.commit()


def read_under_the_lock(shop: Shop, number: int) -> None:
    with shop.locking() as session, session.locked(Order, 1) as order:
        order.total += 10 * number


def both_added(elsewhere: Elsewhere, *_: Outcome) -> bool:
    ((total,),) = elsewhere(sa.select(Order.total).where(Order.id == 1))
    return bool(total == 30 + 10 + 20)


# Write skew: the two totals together must stay above a limit.


def take_if_enough(shop: Shop, number: int) -> None:
    with shop.plain() as session:
        orders = {order.id: order for order in session.scalars(BOTH_TOTALS)}
        if sum(order.total for order in orders.values()) >= LIMIT:
            orders[number].total -= 30
        session.commit()


def take_with_locks(shop: Shop, number: int) -> None:
    with shop.locking() as session, session.begin():
        orders = {order.id: order for order in session.get_entities(Order, [1, 2], ForUpdate)}
        if sum(order.total for order in orders.values()) >= LIMIT:
            orders[number].total -= 30


def taken_once(elsewhere: Elsewhere, *_: Outcome) -> bool:
    ((total,),) = elsewhere(sa.select(sa.func.sum(Order.total)).where(Order.id.in_([1, 2])))
    return bool(total >= 0)


# A phantom: an order must not have more lines than this.


def add_if_few(shop: Shop, number: int) -> None:
    with shop.plain() as session:
        count = session.scalars(sa.select(sa.func.count(Line.id)).where(Line.order_id == 1)).one()
        if count < MOST_LINES:
            session.add(Line(id=FIRST_LINE + number, order_id=1, name="new", value=0))
        session.commit()


def add_under_the_header(shop: Shop, number: int) -> None:
    with shop.locking() as session, session.locked(Order, 1) as order:
        if len(order.lines) < MOST_LINES:
            order.lines.append(Line(id=FIRST_LINE + number, name="new", value=0))


def few_lines(elsewhere: Elsewhere, *_: Outcome) -> bool:
    ((count,),) = elsewhere(sa.select(sa.func.count(Line.id)).where(Line.order_id == 1))
    return bool(count <= MOST_LINES)


# Read skew: the parts read of an order must be consistent.


def read_both(shop: Shop, _: int) -> tuple[int, int]:
    with shop.plain() as session:
        total = session.scalars(sa.select(Order.total).where(Order.id == 1)).one()
        values = session.scalars(sa.select(sa.func.sum(Line.value)).where(Line.order_id == 1)).one()
        session.commit()
        return total, int(values)


def read_together(shop: Shop, _: int) -> tuple[int, int]:
    with shop.locking() as session, session.begin():
        order = session.get_one_entity(Order, 1, SharedRead)
        return order.total, sum(line.value for line in order.lines)


def change_both(shop: Shop, _: int) -> None:
    with shop.locking() as session, session.locked(Order, 1) as order:
        order.lines[0].value += 10
        order.total += 10


def belong_together(_: Elsewhere, first: Outcome, second: Outcome) -> bool:
    if second.error is not None or first.error is not None:
        return True
    total, values = first.result()
    return bool(total == values)


# The header is computed from details while the other session adds some.


def sum_up(shop: Shop, number: int) -> None:
    with shop.plain() as session:
        order = session.get_one(Order, 1)
        order.lines.append(Line(id=FIRST_LINE + number, name="new", value=5))
        order.total = sum(line.value for line in order.lines)
        session.commit()


def sum_up_under_the_header(shop: Shop, number: int) -> None:
    with shop.locking() as session, session.locked(Order, 1) as order:
        order.lines.append(Line(id=FIRST_LINE + number, name="new", value=5))
        order.total = sum(line.value for line in order.lines)


def summed_up(elsewhere: Elsewhere, *_: Outcome) -> bool:
    ((total,),) = elsewhere(sa.select(Order.total).where(Order.id == 1))
    ((values,),) = elsewhere(sa.select(sa.func.sum(Line.value)).where(Line.order_id == 1))
    return bool(total == values)


def lost_update(name: str, wrong: Endpoint, right: Endpoint) -> Race:
    return Race(name, "lost update", (wrong, wrong), (right, right), one_total)


RACES: tuple[Race, ...] = (
    lost_update("no-lock", endpoints.no_lock, endpoints.block),
    lost_update("computed-here", endpoints.plain_session, endpoints.one_statement),
    lost_update("lock-after-read", endpoints.lock_after_the_read, endpoints.with_for_update),
    Race(
        "two-sessions",
        "lost update",
        (read_in_another_session,) * 2,
        (read_under_the_lock,) * 2,
        both_added,
    ),
    lost_update("committed-too-early", endpoints.committed_too_early, endpoints.get_one_entity),
    Race(
        "savepoint",
        "lost update",
        (lock_in_a_savepoint,) * 2,
        (read_under_the_lock,) * 2,
        both_added,
    ),
    lost_update("autocommit", endpoints.autocommit, endpoints.with_for_update),
    Race("write-skew", "write skew", (take_if_enough,) * 2, (take_with_locks,) * 2, taken_once),
    Race("phantom", "write skew", (add_if_few,) * 2, (add_under_the_header,) * 2, few_lines),
    Race(
        "read-skew",
        "read skew",
        (read_both, change_both),
        (read_together, change_both),
        belong_together,
    ),
    Race("sum-of-details", "lost update", (sum_up,) * 2, (sum_up_under_the_header,) * 2, summed_up),
)


# --------------------------------------------------------------------------------------------------
# The tests.

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
    def run(race: Race, functions: tuple[Endpoint, Endpoint], **options: Any) -> Exploration:
        def holds(first: Outcome, second: Outcome) -> bool:
            return race.holds(elsewhere, first, second)

        first, second = (partial(one, shop, number) for number, one in enumerate(functions, 1))
        return explore(first, second, before=start_over, invariant=holds, **options)

    return run


def found_and_cured(explore_race: Explore, race: Race) -> None:
    found = explore_race(race, race.wrong)
    if "could not be forced" in found.incomplete_because:  # the machine is busy
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
    # Waits are detected differently there; the search for orders is the same.
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
    """The write is then visible at once, and each order of it and a read is run."""

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
    if engine.dialect.name == "postgresql":  # its default is one second
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
    """Earlier calls decide its statements, which no order can force."""
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
