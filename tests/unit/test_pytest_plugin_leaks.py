"""``--doclock-leaks``: sessions that tests leave open, in separate runs of pytest."""

from __future__ import annotations

import pytest

SHOP = """
import os
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sa_doclock import LockingSession, LockNotAvailable, LockOptions

class Base(DeclarativeBase):
    pass

class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]

engine = create_engine(f"sqlite:///{os.getpid()}.db", connect_args={"timeout": 0})
Base.metadata.drop_all(engine)
Base.metadata.create_all(engine)
with LockingSession(engine) as session:
    session.add_all([Order(id=1, total=0), Order(id=2, total=0)])
    session.commit()
kept = []

def lock(session, *idents):
    kept.append(session)  # as the traceback of a test that fails does
    for ident in idents:
        session.get_entity(Order, ident, LockOptions.ForUpdate)

def is_free():
    with LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate | LockOptions.NoWait)
        return True
"""
LOCKS = next(n for n, line in enumerate(SHOP.strip().splitlines(), 1) if "get_entity" in line)
TWO_TESTS = """
    from shop import *

    def test_leaves():
        lock(LockingSession(engine), 1, 2)

    def test_next():
        assert is_free()
"""
LEFT = f"left a session open: the LockingSession holds Order 1 FOR UPDATE and 1 more, since shop.py:{LOCKS}. "


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Load no pytest plugin except ours."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p pytest_sa_doclock")
    pytester.makepyfile(shop=SHOP)
    return pytester


def test_it_is_named_and_closed(run: pytest.Pytester) -> None:
    run.makepyfile(TWO_TESTS)
    result = run.runpytest_subprocess()
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines([f"*LeakedSessionWarning: *::test_leaves {LEFT}*"])


def test_it_may_fail_the_test_and_be_left_alone(run: pytest.Pytester) -> None:
    run.makepyfile(TWO_TESTS)
    result = run.runpytest_inprocess("--doclock-leaks=error")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_leaves*", f"*::test_leaves {LEFT}*"])
    result = run.runpytest_inprocess("--doclock-leaks=off")
    result.assert_outcomes(passed=1, failed=1)
    assert run.runpytest_inprocess("--doclock-leaks=no").ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.slow
def test_of_all_workers(run: pytest.Pytester) -> None:
    run.makepyfile(TWO_TESTS, test_more=TWO_TESTS)
    result = run.runpytest_subprocess("-p", "xdist", "-n", "2", "--dist=loadfile")
    result.assert_outcomes(passed=4, warnings=2)
    result.stdout.fnmatch_lines([f"*LeakedSessionWarning: *::test_leaves {LEFT}*"])


LEAKS = """
    import asyncio
    import threading

    import pytest
    from shop import *
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import create_async_engine
    from sa_doclock import AsyncLockingSession
    from sa_doclock.testing import rollback_session

    async_engine = create_async_engine(
        str(engine.url).replace("sqlite:", "sqlite+aiosqlite:"), connect_args={"timeout": 0}
    )

    @pytest.fixture(autouse=True)
    def order_1():
        assert is_free()

    def test_of_a_plain_session():
        kept.append(Session(engine))
        kept[-1].execute(text("UPDATE orders SET total = 1"))

    def test_of_a_read():
        kept.append(LockingSession(engine))
        kept[-1].get(Order, 1)

    def test_after_a_savepoint_has_given_the_lock_up():
        kept.append(LockingSession(engine))
        kept[-1].get(Order, 1)
        with kept[-1].begin_nested() as savepoint:
            lock(kept[-1], 1)
            savepoint.rollback()

    def test_that_fails():
        lock(LockingSession(engine), 1)
        pytest.fail("for its own reason")

    @pytest.fixture
    def leaving():
        yield
        lock(LockingSession(engine), 1)

    def test_of_a_fixture(leaving):
        assert is_free()

    def test_of_a_thread():
        thread = threading.Thread(target=lambda: lock(LockingSession(engine), 1))
        thread.start()
        thread.join()

    def test_of_a_thread_that_runs():
        locked = threading.Event()
        def run():
            lock(LockingSession(engine), 1)
            locked.set()
            threading.Event().wait()
        threading.Thread(target=run, name="Bob", daemon=True).start()
        locked.wait()

    def test_of_asyncio():
        async def leave():
            kept.append(AsyncLockingSession(async_engine))
            await kept[-1].get_entity(Order, 1, LockOptions.ForUpdate)
        asyncio.run(leave())

    loop = asyncio.new_event_loop()

    def test_of_a_loop_that_stays_open():
        kept.append(AsyncLockingSession(async_engine))
        loop.run_until_complete(kept[-1].get_entity(Order, 1, LockOptions.ForUpdate))

    def test_of_a_connection_of_the_program():
        kept.append(engine.connect())
        lock(rollback_session(kept[-1]), 1)

    @pytest.fixture(scope="module", autouse=True)
    def module():
        yield
        kept[-2].rollback()  # the connection is left to the program
        assert is_free()
"""
NAMED = {
    "test_of_a_plain_session": "the Session is in a transaction, since test_what_a_test_leaves.py:*",
    "test_of_a_read": "the LockingSession is in a transaction, since test_what_a_test_leaves.py:*",
    "test_after_a_savepoint_has_given_the_lock_up": "the LockingSession is in a transaction, since *",
    "test_that_fails": "",
    "test_of_a_fixture": "",
    "test_of_a_thread": "the LockingSession of thread * holds Order 1 *",
    "test_of_a_thread_that_runs": "the LockingSession of thread Bob holds Order 1 *",
    "test_of_asyncio": "the LockingSession holds Order 1 FOR UPDATE, since test_what_a_test_leaves.py:*",
    "test_of_a_loop_that_stays_open": "*, since test_what_a_test_leaves.py:*",
    "test_of_a_connection_of_the_program": "",
}


def test_what_a_test_leaves(run: pytest.Pytester) -> None:
    """Each test fails at its end, and the next test finds the order free."""
    run.makepyfile(LEAKS)
    result = run.runpytest_inprocess("--doclock-leaks=error")
    result.assert_outcomes(passed=len(NAMED) - 1, failed=1, errors=len(NAMED))
    held = f"the LockingSession holds Order 1 FOR UPDATE, since shop.py:{LOCKS}."
    for name, state in NAMED.items():
        result.stdout.fnmatch_lines(
            [f"*ERROR at teardown of {name} *", f"*::{name} left a session open: {state or held}*"]
        )


def test_what_is_of_a_fixture_of_wider_scope(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import threading

        import pytest
        from shop import *

        @pytest.fixture
        def closed():
            with LockingSession(engine) as session:
                lock(session, 1)
                yield session

        def test_a_fixture_of_the_test_closes_it(closed):
            assert closed.held_locks

        def test_rollback_session(rollback_session):
            with engine.connect() as connection:
                lock(rollback_session(connection), 1)
                connection.commit()

        def test_a_thread_ends_it_soon():
            locked, end = threading.Event(), threading.Event()
            def run():
                with LockingSession(engine) as session:
                    lock(session, 1)
                    locked.set()
                    end.wait()
            threading.Thread(target=run).start()
            locked.wait()
            threading.Timer(0.05, end.set).start()

        @pytest.fixture(scope="class")
        def session():
            with LockingSession(engine) as session:
                yield session
                assert session.held_locks

        class TestOneSession:
            def test_locks(self, session):
                lock(session, 1)

            def test_has_it(self, session):
                assert session.held_locks

        @pytest.fixture(scope="class")
        def thread():
            begin, locked, end = threading.Event(), threading.Event(), threading.Event()
            def run():
                begin.wait()
                with LockingSession(engine) as session:
                    lock(session, 1)
                    locked.set()
                    end.wait()
                    assert session.held_locks
            thread = threading.Thread(target=run)
            thread.start()
            yield begin, locked
            end.set()
            thread.join()

        class TestOneThread:
            def test_first(self, thread):
                thread[0].set()
                thread[1].wait()

            def test_second(self, thread):
                with pytest.raises(LockNotAvailable):
                    is_free()

        one_session = LockingSession(engine)

        @pytest.fixture(scope="class")
        def locked():
            lock(one_session, 1)
            yield one_session
            one_session.close()

        class TestOneLock:
            def test_first(self, locked):
                assert locked.held_locks

            def test_second(self, locked):
                assert locked.held_locks

        def test_last():
            assert is_free()
    """)
    run.runpytest_inprocess("--doclock-leaks=error").assert_outcomes(passed=10)


def test_what_a_fixture_of_wider_scope_leaves(run: pytest.Pytester) -> None:
    """The plugin closes the session when that scope ends, before the fixtures that it depends on."""
    run.makepyfile("""
        import pytest
        from shop import *

        @pytest.fixture(scope="class", params=[1, 2])
        def order(request):
            yield request.param
            assert is_free()

        @pytest.fixture(scope="class")
        def session(order):
            session = LockingSession(engine)
            lock(session, order)
            return session

        class TestOrder:
            def test_first(self, session): pass
            def test_second(self, session):
                assert session.held_locks

        def test_last():
            assert is_free()
    """)
    result = run.runpytest_inprocess("--doclock-leaks=error")
    result.assert_outcomes(passed=4, errors=2)  # one error during the set-up of the third test
    for ident in 1, 2:
        result.stdout.fnmatch_lines([f"*left a session open: * holds Order {ident} FOR UPDATE, *"])


def test_a_fixture_that_waits_for_what_the_test_left(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import pytest
        from pytest_sa_doclock import left_sessions
        from shop import *

        patient = create_engine(engine.url, connect_args={"timeout": 20})

        @pytest.fixture
        def tables(monkeypatch):
            monkeypatch.setattr(left_sessions, "_LONG", 0.1)
            yield
            Base.metadata.drop_all(patient)

        def test_leaves(tables):
            lock(LockingSession(engine), 1)
    """)
    result = run.runpytest_inprocess("--doclock-leaks=error")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*::test_leaves left a session open: *"])
    result.stdout.no_fnmatch_line("*database is locked*")
