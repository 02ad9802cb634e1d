"""The pytest plugin of sa_doclock: the test kit as fixtures, and options for the whole run.

pytest imports this package in every run.  So it is separate from sa_doclock, which it imports, with
SQLAlchemy, only if a test or an option uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from .audit_options import add_options, begin_audit, separate_from_tests
from .left_sessions import LeakedSessionWarning, LeftSessions, add_option
from .unlocked_writes import UnlockedWrites

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from sa_doclock import LockingSession
    from sa_doclock.testing import Exploration, LockRecord

__all__ = ["LeakedSessionWarning"]

_GUARD_MODES = ("raise", "warn", "off")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("sa_doclock", "locks of documents (sa_doclock)")
    group.addoption(
        "--doclock-guard",
        choices=_GUARD_MODES,
        help="the write guard of every LockingSession of this run, whatever the session says; "
        "warn: let unlocked writes through, and list them at the end",
    )
    add_option(group)
    add_options(group)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Read the options before conftest.py files are collected."""
    separate_from_tests(early_config, parser, args)


def pytest_configure(config: pytest.Config) -> None:
    """Start the requested checks: unlocked writes, open sessions, the audit; set the guard's mode."""
    writes = UnlockedWrites(config)
    config.pluginmanager.register(writes, "sa_doclock.unlocked_writes")
    mode = config.getoption("doclock_guard")
    if mode is not None:
        writes.set_guard(mode)
    leaks = config.getoption("doclock_leaks")
    if leaks != "off":
        config.pluginmanager.register(LeftSessions(config, leaks), "sa_doclock.left_sessions")
    begin_audit(config)


@pytest.fixture
def recorded_locks() -> Iterator[Sequence[LockRecord]]:
    """The locks that sessions take in this test, as sa_doclock.testing.recorded_locks() yields them."""
    from sa_doclock import testing  # noqa: PLC0415  # only tests that use it load it

    with testing.recorded_locks() as locks:
        yield locks


@pytest.fixture
def explore(request: pytest.FixtureRequest) -> Callable[..., Exploration]:
    """The function sa_doclock.testing.explore().  It shows the progress of a long run even while
    pytest captures output.
    """
    from functools import partial  # noqa: PLC0415

    from sa_doclock import testing  # noqa: PLC0415

    return partial(testing.explore, progress=partial(_write_line, request.config))


def _write_line(config: pytest.Config, text: str) -> None:
    """Write a line to the terminal, even while pytest captures output."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if capture is None or terminal is None:  # a pytest-xdist worker has no terminal
        return
    with capture.global_and_fixture_disabled():
        terminal.write_line(text)


@pytest.fixture
def rollback_session() -> Iterator[Callable[..., LockingSession]]:
    """The function sa_doclock.testing.rollback_session().  The fixture closes its sessions after the test."""
    from contextlib import ExitStack  # noqa: PLC0415

    from sa_doclock import testing  # noqa: PLC0415

    with ExitStack() as sessions:

        def make(connection: Connection, **options: Any) -> LockingSession:
            return sessions.enter_context(testing.rollback_session(connection, **options))

        yield make


def _function(name: str) -> Any:
    def function() -> Any:
        from sa_doclock import testing  # noqa: PLC0415

        return getattr(testing, name)

    function.__doc__ = f"The function sa_doclock.testing.{name}()."
    return pytest.fixture(name=name)(function)


two_at_once = _function("two_at_once")
async_two_at_once = _function("async_two_at_once")
wait_until_blocked = _function("wait_until_blocked")
assert_locked = _function("assert_locked")
