"""Targets of a listener: a class, a subclass, a factory, a session, one inside an async session."""

from __future__ import annotations

import gc
import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_doclock import AsyncLockingSession, LockingSession, LockOptions
from sa_doclock.features import held_warnings
from tests.integration.asyncio.drivers import DRIVERS, connected, in_a_loop, url_for
from tests.integration.instrumentation.test_events import NAMES, Heard, hearing
from tests.support.databases import Database
from tests.support.models import Customer, Order
from tests.support.waits import wait_until

ForUpdate = LockOptions.ForUpdate


class Special(LockingSession):
    """An application's subclass."""


class MoreSpecial(Special):
    """A subclass of that subclass."""


def use(session: Session) -> None:
    assert isinstance(session, LockingSession)
    with session:
        session.get_one_entity(Order, 1, ForUpdate)
        session.commit()


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
def test_the_class_is_notified_of_all(engine: sa.Engine) -> None:
    with hearing(LockingSession) as heard:
        for make in (LockingSession, Special, sessionmaker(class_=LockingSession)):
            use(make(bind=engine))
    assert heard.names == (3, 0, 3)
    use(LockingSession(engine))
    assert heard.names == (3, 0, 3)  # after event.remove()


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
def test_a_subclass_is_notified_of_its_own(engine: sa.Engine) -> None:
    with hearing(Special) as heard:
        use(LockingSession(engine))
        assert heard.names == (0, 0, 0)
        use(Special(engine))
        use(MoreSpecial(engine))
    assert heard.names == (2, 0, 2)


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
def test_a_class_that_is_made_later_is_notified(engine: sa.Engine) -> None:
    with hearing(LockingSession) as heard:

        class Late(LockingSession):
            pass

        use(Late(engine))
    assert heard.names == (1, 0, 1)


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
def test_a_maker_is_notified_of_its_sessions(engine: sa.Engine) -> None:
    make, other = (sessionmaker(engine, class_=LockingSession) for _ in range(2))
    with hearing(make) as heard:
        use(make())
        use(other())
        use(LockingSession(engine))
    assert heard.names == (1, 0, 1)


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
def test_a_scoped_session_too(engine: sa.Engine) -> None:
    scoped = scoped_session(sessionmaker(engine, class_=LockingSession))
    with hearing(scoped) as heard:
        use(scoped())
        scoped.remove()
    assert heard.names == (1, 0, 1)


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
def test_a_session_is_notified_of_itself(engine: sa.Engine) -> None:
    session, other = LockingSession(engine), LockingSession(engine)
    with hearing(session) as heard:
        use(other)
        assert heard.names == (0, 0, 0)
        use(session)
    assert heard.names == (1, 0, 1)
    assert set(heard.sessions) == {session}


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
def test_a_plain_session_has_no_such_events(engine: sa.Engine) -> None:
    with Session(engine) as plain:
        for name in NAMES:
            for target in (Session, sessionmaker(engine), plain):
                with pytest.raises((sa.exc.InvalidRequestError, AttributeError)):
                    event.listen(target, name, print)


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
def test_a_misspelt_event_is_refused() -> None:
    with pytest.raises(sa.exc.InvalidRequestError, match="lock_aquired"):
        event.listen(LockingSession, "lock_aquired", print)


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
def test_a_listener_can_take_its_arguments_by_name_and_be_called_once(engine: sa.Engine) -> None:
    reported: list[dict[str, Any]] = []
    with LockingSession(engine) as session:
        event.listen(session, "lock_acquired", lambda **how: reported.append(how), named=True)
        event.listen(session, "lock_acquired", lambda *_: reported.append({}), once=True)
        session.get_one_entity(Order, 1, ForUpdate)
        session.rollback()
        session.get_one_entity(Order, 2, ForUpdate)
    assert [sorted(how) for how in reported if how] == [
        ["document", "lock", "session", "waited"]
    ] * 2
    assert reported.count({}) == 1


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
def test_the_decorator_works(engine: sa.Engine) -> None:
    heard = Heard()
    session = LockingSession(engine)
    event.listens_for(session, "locks_released")(heard.locks_released)
    use(session)
    assert heard.names == (0, 0, 1)


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
@in_a_loop
async def test_an_async_session_by_what_it_wraps(documents: Database) -> None:
    (driver,) = DRIVERS["sqlite"]
    async with connected(url_for(documents, driver)) as engine:
        make = async_sessionmaker(engine, class_=AsyncLockingSession)
        async with make() as session, make() as other:
            with hearing(session.sync_session) as heard, hearing(LockingSession) as all_heard:
                for one in (session, other):
                    await one.get_one_entity(Order, 1, ForUpdate)
                    await one.commit()
    assert heard.names == (1, 0, 1)
    assert all_heard.names == (2, 0, 2)


OWN = ("after_begin", "before_flush", "after_commit", "before_commit", "after_transaction_end")


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.parametrize("listened_to", [LockingSession, Session, None])
def test_the_events_of_sqlalchemy_are_reported_as_ever(
    engine: sa.Engine, listened_to: type[Session] | None
) -> None:
    reported: list[str] = []
    session = LockingSession(engine)
    target = listened_to or session
    listeners = {name: lambda *_, name=name: reported.append(name) for name in OWN}
    for name, listener in listeners.items():
        event.listen(target, name, listener)
    try:
        with session:
            session.add(Customer(id=9, name="new"))
            session.commit()
    finally:
        for name, listener in listeners.items():
            event.remove(target, name, listener)
    assert reported == [
        "before_commit",
        "before_flush",
        "after_begin",
        "after_transaction_end",
        "after_commit",
        "after_transaction_end",
    ]  # the flush has its own


# --------------------------------------------------------------------------------------------------
# warn_held_after logs a lock that is held too long, with the line that took it.


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], list[Any]]]:
    """Return a function that returns the warnings with this outcome."""

    def warnings(outcome: str) -> list[Any]:
        records = [one for one in caplog.records if one.levelno == logging.WARNING]
        return [one for one in records if vars(one)["outcome"] == outcome]

    with caplog.at_level(logging.WARNING, "sa_doclock"):
        yield warnings


def here() -> str:
    """Return the caller's line, formatted as in a warning."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno}"


@pytest.mark.read_committed
def test_while_it_is_held_and_when_it_is_released(
    engine: sa.Engine, log: Callable[[str], list[Any]]
) -> None:
    with LockingSession(engine, warn_held_after=0.01) as session:
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        line = here().rsplit(":", 1)[1]
        wait_until(lambda: log("held"))
        assert not log("committed")
        session.commit()
    for outcome, words in (("held", ": still held"), ("committed", ": committed")):
        (record,) = log(outcome)
        assert (record.document, record.lock) == ("Order 1", "FOR UPDATE")
        assert record.held >= 0.01
        assert record.line == f"{__file__}:{int(line) - 1}"
        assert record.getMessage().startswith("Order 1 FOR UPDATE: held for 0.")
        assert record.getMessage().endswith(f"taken at {record.line}{words}")


WAYS: dict[str, Callable[[LockingSession], object]] = {
    "set": lambda session: session.scalars(session.entity_set(Order, ForUpdate)).all(),
    "for update": lambda session: session.scalars(sa.select(Order).with_for_update()).all(),
    "key": lambda session: session.lock_key("a"),
    "document": lambda session: session.get_one_document(Order, 1, ForUpdate),
}


@pytest.mark.read_committed
@pytest.mark.parametrize("way", WAYS)
def test_whatever_takes_it(engine: sa.Engine, log: Callable[[str], list[Any]], way: str) -> None:
    with LockingSession(engine, warn_held_after=0) as session:
        kept = WAYS[way](session)
        session.rollback()
        del kept
    named = {"set": ["Order 1", "Order 2"], "key": ["named lock 'a'"]}
    named |= {"for update": named["set"]}
    records = log("rolled back")
    assert [one.document for one in records] == named.get(way, ["Order 1"])
    assert all(__file__ in one.line for one in records)


@pytest.mark.read_committed
def test_each_time_that_it_is_taken(engine: sa.Engine, log: Callable[[str], list[Any]]) -> None:
    with LockingSession(engine, warn_held_after=0) as session:
        for count in (1, 2):
            session.get_one_entity(Order, 1, ForUpdate)
            session.rollback()
            assert len(log("rolled back")) == count


@pytest.mark.read_committed
def test_nothing_that_is_short(engine: sa.Engine, log: Callable[[str], list[Any]]) -> None:
    with LockingSession(engine, warn_held_after=600) as session, session.locked(Order, 1):
        pass
    with LockingSession(engine) as session, session.locked(Order, 1):
        pass
    assert not log("held")
    assert not log("committed")
    assert not any(held_warnings._watcher._waiting.values())


@pytest.mark.read_committed
@pytest.mark.databases("sqlite")
def test_one_thread_for_all(engine: sa.Engine, log: Callable[[str], list[Any]]) -> None:
    for seconds in (0.01, 0.02, 0.01):
        with (
            LockingSession(engine, warn_held_after=seconds) as session,
            session.locked(Order, 1),
        ):
            before = len(log("held"))
            wait_until(lambda before=before: len(log("held")) > before)  # type: ignore[misc]
    named = [one for one in threading.enumerate() if one.name == "sa_doclock held locks"]
    assert len(named) == 1
    assert named[0].daemon


@pytest.fixture
def watcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[held_warnings._Watcher]:
    """Make a watcher whose thread has not started, independent of other tests."""
    watcher = held_warnings._Watcher()
    monkeypatch.setattr(held_warnings, "_watcher", watcher)
    yield watcher
    if watcher._thread is not None:
        watcher._thread.name = "left by a test"


class _NoThread(threading.Thread):
    def start(self) -> None:
        raise RuntimeError("can't start new thread")


@pytest.mark.read_committed
@pytest.mark.usefixtures("watcher")
def test_a_thread_that_could_not_be_started_is_started_by_a_later_lock(
    engine: sa.Engine, log: Callable[[str], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LockingSession(engine, warn_held_after=0.01) as session:
        with monkeypatch.context() as patched:
            patched.setattr(held_warnings, "Thread", _NoThread)
            session.get_one_entity(Order, 1, ForUpdate)
        session.get_one_entity(Order, 2, ForUpdate)
        wait_until(lambda: len(log("held")) == 2)


@pytest.mark.read_committed
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_handler_that_raises_ends_no_later_warning(
    engine: sa.Engine, log: Callable[[str], list[Any]], watcher: held_warnings._Watcher
) -> None:
    def fail(_record: logging.LogRecord) -> bool:
        raise ZeroDivisionError

    with LockingSession(engine, warn_held_after=0.01) as session:
        logger = logging.getLogger("sa_doclock")
        logger.addFilter(fail)
        try:
            session.get_one_entity(Order, 1, ForUpdate)
            wait_until(lambda: watcher._thread is None)
        finally:
            logger.removeFilter(fail)
        session.get_one_entity(Order, 2, ForUpdate)
        wait_until(lambda: log("held"))


@pytest.mark.read_committed
@pytest.mark.databases("sqlite")
def test_it_keeps_no_session_alive(engine: sa.Engine) -> None:
    session = LockingSession(engine, warn_held_after=600)
    session.get_one_entity(Order, 1, ForUpdate)
    (held,) = [one() for one in held_warnings._watcher._waiting[600.0]]
    referred = gc.get_referents(vars(held))
    assert not any(isinstance(one, (LockingSession, sa.Connection)) for one in referred)
    session.close()
    assert not held_warnings._watcher._waiting[600.0]


@pytest.mark.read_committed
@pytest.mark.databases("sqlite")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_after_a_fork(engine: sa.Engine, log: Callable[[str], list[Any]]) -> None:
    with LockingSession(engine, warn_held_after=0.01) as session, session.locked(Order, 1):
        wait_until(lambda: log("held"))
    engine.dispose()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            before = len(log("held"))
            with (
                LockingSession(engine, warn_held_after=0.01) as session,
                session.locked(Order, 1),
            ):
                wait_until(lambda: len(log("held")) > before)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
