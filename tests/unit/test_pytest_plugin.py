"""The pytest plugin, in separate runs of pytest."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

SHOP = """
import os
from sqlalchemy import ForeignKey, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, sessionmaker
from sa_doclock import LockingSession, document

class Base(DeclarativeBase):
    pass

@document(parts=("lines",))
class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    lines: Mapped[list["Line"]] = relationship(cascade="all, delete-orphan")

class Line(Base):
    __tablename__ = "order_lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))

engine = create_engine(f"sqlite:///{os.getpid()}.db")  # pytest-xdist has several processes
Base.metadata.drop_all(engine)
Base.metadata.create_all(engine)
with LockingSession(engine) as session:
    session.add_all([Order(id=1, total=0), Order(id=2, total=0)])
    session.commit()

def add(ident, **options):
    with LockingSession(engine, **options) as session:
        session.get_one(Order, ident).total += 1
        session.commit()

def add_under_lock(ident):
    with LockingSession(engine) as session, session.locked(Order, ident) as order:
        order.total += 1

def append_line(**options):
    with LockingSession(engine, **options) as session:
        order = session.get_one(Order, 1)
        order.lines.append(Line())
        session.commit()
"""
TITLE = "unlocked writes (sa_doclock)"


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Load no pytest plugin except ours."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p pytest_sa_doclock")
    pytester.makepyfile(shop=SHOP)
    return pytester


def lines_of_table(result: pytest.RunResult) -> list[list[str]]:
    """Return the rows of the table at the end of a run, split into columns."""
    start = next(n for n, line in enumerate(result.outlines) if TITLE in line)
    rows = [line.split() for line in result.outlines[start + 1 :]]
    assert rows[0] == ["line", "class", "times"]
    return [row for row in rows[1:] if len(row) == 3 and row[0].startswith("shop.py:")]


def line_of(function: str) -> str:
    """Return the line of the program where a function of the shop commits."""
    lines = SHOP.strip().splitlines()
    start = lines.index(f"def {function}:")
    commits = next(n for n in range(start, len(lines)) if "session.commit()" in lines[n])
    return f"shop.py:{commits + 1}"


def test_the_entry_point() -> None:
    (point,) = entry_points(group="pytest11", name="sa_doclock")
    assert point.value == "pytest_sa_doclock"


def test_a_run_that_does_not_use_it_loads_nothing(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import sys

        def test_nothing_is_loaded():
            assert not {"sa_doclock", "sqlalchemy", "asyncio.events"} & sys.modules.keys()
    """)
    result = run.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    assert TITLE not in result.stdout.str()


def test_the_fixtures(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import asyncio

        import pytest
        import shop

        def test_records(recorded_locks):
            shop.add_under_lock(1)
            assert [(one.entity, one.ident) for one in recorded_locks] == [(shop.Order, 1)]

        def test_assertion(assert_locked):
            with assert_locked(shop.Order, 2):
                shop.add_under_lock(2)
            with pytest.raises(AssertionError), assert_locked(shop.Order, 2):
                pass

        @pytest.fixture
        def connection():
            with shop.engine.connect() as connection:
                yield connection

        @pytest.mark.parametrize("again", [False, True])
        def test_rollback(rollback_session, connection, again):
            session = rollback_session(connection)
            with session.locked(shop.Order, 1) as order:
                assert order.total == 1
                order.total += 1

        def test_wait(wait_until_blocked, rollback_session, connection):
            with pytest.raises(AssertionError):
                wait_until_blocked(rollback_session(connection), timeout=0)

        def test_double_click(two_at_once):
            def add():
                shop.add_under_lock(1)

            assert [one.error for one in two_at_once(add, add)] == [None, None]

        def test_all_orders(explore):
            result = explore(
                lambda: shop.add_under_lock(1),
                lambda: shop.add_under_lock(1),
                before=lambda: None,
                invariant=lambda: True,
            )
            assert result.complete and result.runs > 1

        def test_double_click_of_a_coroutine(async_two_at_once):
            async def add():
                shop.add_under_lock(1)

            async def test():
                first, second = await async_two_at_once(add, lambda: None)
                assert first.error is None

            asyncio.run(test())
    """)
    run.runpytest_subprocess().assert_outcomes(passed=8)


def test_all_orders_in_the_workers_of_xdist(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import pytest, shop
        from sqlalchemy.orm import Session

        def pay():
            with Session(shop.engine) as session:
                session.get_one(shop.Order, 1).total += 1
                session.commit()

        def start_over():
            with Session(shop.engine) as session:
                session.get_one(shop.Order, 1).total = 0
                session.commit()

        def nothing_is_lost():
            with Session(shop.engine) as session:
                assert session.get_one(shop.Order, 1).total == 2

        @pytest.mark.parametrize("number", range(4))
        def test_pay(explore, number):
            result = explore(pay, pay, before=start_over, invariant=nothing_is_lost)
            assert result.complete
            assert {one.anomaly for one in result.failures} == {"lost update"}
    """)
    result = run.runpytest_subprocess("-p", "xdist", "-n", "2")
    result.assert_outcomes(passed=4)


def test_the_table_of_sessions_that_warn(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import pytest

        @pytest.fixture
        def shop():
            import shop  # only now
            return shop

        def test_orders(shop):
            shop.add(1, guard="warn")
            shop.add(2, guard="warn")

        def test_lines(shop):
            shop.append_line(guard="warn")
            shop.add_under_lock(1)
    """)
    result = run.runpytest_subprocess("-W", "default")
    result.assert_outcomes(passed=2)
    assert lines_of_table(result) == [
        [line_of("add(ident, **options)"), "Order", "2"],
        [line_of("append_line(**options)"), "Order", "1"],
    ]


TESTS = """
    import shop

    def test_order():
        shop.add(1)

    def test_line():
        shop.append_line()
"""


@pytest.mark.slow
def test_without_the_option_an_unlocked_write_is_an_error(run: pytest.Pytester) -> None:
    run.makepyfile(TESTS)
    result = run.runpytest_subprocess()
    result.assert_outcomes(failed=2)
    assert TITLE not in result.stdout.str()


def test_the_guard_of_a_run_may_warn(run: pytest.Pytester) -> None:
    run.makeini("[pytest]\nfilterwarnings = error")
    run.makepyfile(TESTS)
    result = run.runpytest_subprocess("--doclock-guard=warn")
    result.assert_outcomes(passed=2)
    assert len(lines_of_table(result)) == 2


@pytest.mark.slow
def test_the_guard_of_a_run_may_raise_and_be_off(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import shop

        def test_order():
            shop.add(1, guard="off")
    """)
    result = run.runpytest_subprocess("--doclock-guard=raise")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*UnlockedWrite: Order 1 *"])
    run.makepyfile(TESTS)
    run.runpytest_subprocess("--doclock-guard=off").assert_outcomes(passed=2)


def test_there_is_no_other_guard(run: pytest.Pytester) -> None:
    result = run.runpytest_subprocess("--doclock-guard=maybe")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--doclock-guard: invalid choice: 'maybe'*"])


@pytest.mark.slow
def test_the_table_of_all_workers(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import pytest
        import shop

        @pytest.mark.parametrize("ident", [1, 2, 1, 2])
        def test_order(ident):
            shop.add(ident)
    """)
    result = run.runpytest_subprocess("-p", "xdist", "-n", "2", "--doclock-guard=warn")
    result.assert_outcomes(passed=4)
    assert lines_of_table(result) == [[line_of("add(ident, **options)"), "Order", "4"]]
