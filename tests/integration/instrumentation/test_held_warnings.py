"""warn_held_after: a lock that is held for long is in the log, with the line that took it."""

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

from sa_doclock import LockingSession, LockOptions
from sa_doclock.features import held_warnings
from tests.support.models import Order
from tests.support.waits import wait_until

pytestmark = pytest.mark.read_committed

ForUpdate = LockOptions.ForUpdate
Session = LockingSession


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], list[Any]]]:
    """Return a function that returns the warnings with this outcome."""

    def warnings(outcome: str) -> list[Any]:
        records = [one for one in caplog.records if one.levelno == logging.WARNING]
        return [one for one in records if vars(one)["outcome"] == outcome]

    with caplog.at_level(logging.WARNING, "sa_doclock"):
        yield warnings


def here() -> str:
    """Return the line of the caller, as a warning writes it."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno}"


def test_while_it_is_held_and_when_it_is_released(
    engine: sa.Engine, log: Callable[[str], list[Any]]
) -> None:
    with Session(engine, warn_held_after=0.01) as session:
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


WAYS: dict[str, Callable[[Session], object]] = {
    "set": lambda session: session.scalars(session.entity_set(Order, ForUpdate)).all(),
    "for update": lambda session: session.scalars(sa.select(Order).with_for_update()).all(),
    "key": lambda session: session.lock_key("a"),
    "document": lambda session: session.get_one_document(Order, 1, ForUpdate),
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_takes_it(engine: sa.Engine, log: Callable[[str], list[Any]], way: str) -> None:
    with Session(engine, warn_held_after=0) as session:
        kept = WAYS[way](session)
        session.rollback()
        del kept
    named = {"set": ["Order 1", "Order 2"], "key": ["named lock 'a'"]}
    named |= {"for update": named["set"]}
    records = log("rolled back")
    assert [one.document for one in records] == named.get(way, ["Order 1"])
    assert all(__file__ in one.line for one in records)


def test_each_time_that_it_is_taken(engine: sa.Engine, log: Callable[[str], list[Any]]) -> None:
    with Session(engine, warn_held_after=0) as session:
        for count in (1, 2):
            session.get_one_entity(Order, 1, ForUpdate)
            session.rollback()
            assert len(log("rolled back")) == count


def test_nothing_that_is_short(engine: sa.Engine, log: Callable[[str], list[Any]]) -> None:
    with Session(engine, warn_held_after=600) as session, session.locked(Order, 1):
        pass
    with Session(engine) as session, session.locked(Order, 1):
        pass
    assert not log("held")
    assert not log("committed")
    assert not any(held_warnings._watcher._waiting.values())


@pytest.mark.databases("sqlite")
def test_one_thread_for_all(engine: sa.Engine, log: Callable[[str], list[Any]]) -> None:
    for seconds in (0.01, 0.02, 0.01):
        with Session(engine, warn_held_after=seconds) as session, session.locked(Order, 1):
            before = len(log("held"))
            wait_until(lambda before=before: len(log("held")) > before)  # type: ignore[misc]
    named = [one for one in threading.enumerate() if one.name == "sa_doclock held locks"]
    assert len(named) == 1
    assert named[0].daemon


@pytest.fixture
def watcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[held_warnings._Watcher]:
    """Have one whose thread has not been started yet, and is not counted by other tests."""
    watcher = held_warnings._Watcher()
    monkeypatch.setattr(held_warnings, "_watcher", watcher)
    yield watcher
    if watcher._thread is not None:
        watcher._thread.name = "left by a test"


class _NoThread(threading.Thread):
    def start(self) -> None:
        raise RuntimeError("can't start new thread")


@pytest.mark.usefixtures("watcher")
def test_a_thread_that_could_not_be_started_is_started_by_a_later_lock(
    engine: sa.Engine, log: Callable[[str], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(engine, warn_held_after=0.01) as session:
        with monkeypatch.context() as patched:
            patched.setattr(held_warnings, "Thread", _NoThread)
            session.get_one_entity(Order, 1, ForUpdate)
        session.get_one_entity(Order, 2, ForUpdate)
        wait_until(lambda: len(log("held")) == 2)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_handler_that_raises_ends_no_later_warning(
    engine: sa.Engine, log: Callable[[str], list[Any]], watcher: held_warnings._Watcher
) -> None:
    def fail(_record: logging.LogRecord) -> bool:
        raise ZeroDivisionError

    with Session(engine, warn_held_after=0.01) as session:
        logger = logging.getLogger("sa_doclock")
        logger.addFilter(fail)
        try:
            session.get_one_entity(Order, 1, ForUpdate)
            wait_until(lambda: watcher._thread is None)
        finally:
            logger.removeFilter(fail)
        session.get_one_entity(Order, 2, ForUpdate)
        wait_until(lambda: log("held"))


@pytest.mark.databases("sqlite")
def test_it_keeps_no_session_alive(engine: sa.Engine) -> None:
    session = Session(engine, warn_held_after=600)
    session.get_one_entity(Order, 1, ForUpdate)
    (held,) = [one() for one in held_warnings._watcher._waiting[600.0]]
    referred = gc.get_referents(vars(held))
    assert not any(isinstance(one, (Session, sa.Connection)) for one in referred)
    session.close()
    assert not held_warnings._watcher._waiting[600.0]


@pytest.mark.databases("sqlite")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_after_a_fork(engine: sa.Engine, log: Callable[[str], list[Any]]) -> None:
    with Session(engine, warn_held_after=0.01) as session, session.locked(Order, 1):
        wait_until(lambda: log("held"))
    engine.dispose()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            before = len(log("held"))
            with Session(engine, warn_held_after=0.01) as session, session.locked(Order, 1):
                wait_until(lambda: len(log("held")) > before)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
