"""``--doclock-leaks``: reports and closes the sessions that a test leaves in a transaction."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakKeyDictionary

import pytest

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from sa_doclock.testing.open_sessions import OpenSessions, OpenTransaction

OPTION: Final = "--doclock-leaks"
MODES: Final = ("error", "close", "off")


_LONG: Final = 5.0  # seconds after which a tear-down is assumed to wait for a session left open


class LeakedSessionWarning(pytest.PytestWarning):
    """A test left a session in a transaction; the plugin closed it."""


def add_option(group: pytest.OptionGroup) -> None:
    """Add the option."""
    group.addoption(
        OPTION,
        choices=MODES,
        default="close",
        help="sessions that hold locks, or are in a transaction, when a test ends; "
        "close: close them and warn (default), error: close them and fail the test, off: leave them",
    )


class _WiderFixture:
    """A fixture that outlives a test, beginning with its set-up."""

    ended = False


class LeftSessions:
    """Looks for sessions when a test ends, and when a fixture of wider scope ends.

    It leaves transactions, sessions and threads of a wider fixture alone until that fixture ends.
    """

    def __init__(self, config: pytest.Config, mode: Literal["error", "close"]) -> None:
        self._config, self._fails = config, mode == "error"
        self._open: OpenSessions | None = None
        self._item: pytest.Item | None = None
        self._ends_with: pytest.Item | None = None
        self._fixture: _WiderFixture | None = None
        self._timer: threading.Timer | None = None
        self._texts: list[str] = []
        self._made: WeakKeyDictionary[Session | threading.Thread, _WiderFixture] = (
            WeakKeyDictionary()
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Begin to listen if the test modules have imported sa_doclock."""
        self._item = item
        self._listen()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        """Note the sessions and threads that a fixture of wider scope creates."""
        if request.scope == "function":
            self._look_after(request.node)
            yield
            return
        fixture = _WiderFixture()
        fixturedef.addfinalizer(partial(self._end_fixture, fixture))
        around, self._fixture = self._fixture, fixture
        known = set(self._all())
        yield
        self._fixture = around
        for found in self._all():
            if found not in known:
                self._made.setdefault(found, fixture)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Handle a test without fixtures."""
        self._look_after(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """Keep the test's fixtures from waiting for sessions that it left open, as DROP TABLE does.

        Until the fixtures end, one of them may still close a session.
        """
        if self._open is not None and self._left():
            self._timer = threading.Timer(_LONG, self._close)
            self._timer.daemon = True
            self._timer.start()

    def pytest_unconfigure(self) -> None:
        """Stop listening."""
        if self._open is not None:
            self._open.forget()
            self._open = None

    def _look_after(self, item: pytest.Item) -> None:
        """Look for sessions after this test's fixtures end, and before fixtures of wider scope end."""
        self._listen()  # a fixture may have imported sa_doclock
        if self._ends_with is not item:
            self._ends_with = item
            item.addfinalizer(self._end)  # added first, so called last

    def _listen(self) -> None:
        if self._open is None and "sa_doclock.session" in sys.modules:
            from sa_doclock.testing.open_sessions import OpenSessions  # noqa: PLC0415

            self._open = OpenSessions(lambda: (self._fixture, self._item))
            self._open.listen()

    def _all(self) -> list[Session | threading.Thread]:
        if "sa_doclock.session" not in sys.modules:
            return [*threading.enumerate()]
        from sa_doclock.sqlalchemy_internals import all_sessions  # noqa: PLC0415

        return [*threading.enumerate(), *all_sessions()]

    def _end_fixture(self, fixture: _WiderFixture) -> None:
        fixture.ended = True
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            self._timer = None
        self._close()
        text = "\n".join(self._texts)
        self._texts.clear()
        if text and self._fails:
            pytest.fail(text, pytrace=False)
        elif text and self._item is not None:
            self._item.warn(LeakedSessionWarning(text))

    def _close(self) -> None:
        if self._open is not None and (left := self._left()):
            self._open.wait_for_threads(left)
            self._texts += [self._end_session(*left) for left in self._left()]

    def _left(self) -> list[tuple[Session, OpenTransaction]]:
        assert self._open is not None
        return [found for found in self._open.found() if not self._is_needed(*found)]

    def _is_needed(self, session: Session, transaction: OpenTransaction) -> bool:
        fixtures = (
            transaction.owner[0],
            self._made.get(session),
            self._made.get(transaction.thread),
        )
        return any(fixture is not None and not fixture.ended for fixture in fixtures)

    def _end_session(self, session: Session, transaction: OpenTransaction) -> str:
        from sa_doclock.testing.open_sessions import end_session, label_of  # noqa: PLC0415

        item, held = transaction.owner[1], [*map(label_of, transaction.held.items())]
        if held:
            others = f" and {len(held) - 1} more" if len(held) > 1 else ""
            state = f"holds {held[0]}{others}, since {self._shown(transaction.locked)}"
        else:
            state = f"is in a transaction, since {self._shown(transaction.began)}"
        thread = transaction.thread
        where = "" if thread is threading.main_thread() else f" of thread {thread.name}"
        error = end_session(session, transaction)
        if error is None:
            done = "It is closed now, and what it had not committed is rolled back"
        else:
            done = f"It cannot be closed from here ({type(error).__name__}: {error})"
        return (
            f"{item.nodeid} left a session open: the {type(session).__name__}{where} {state}. {done}. "
            "Close it in the test, or in the fixture that makes it"
        )

    def _shown(self, line: str | None) -> str:
        """Return the line with its file relative to the folder in which pytest was started."""
        return (line or "unknown").removeprefix(f"{self._config.invocation_params.dir}{os.sep}")
