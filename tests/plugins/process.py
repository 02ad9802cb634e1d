"""The processes of a run: their output and memory, slow tests, and what a test may leave behind."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

from lab.running.memory import keep_temporary_files_in_memory
from lab.running.progress import keep_terminal
from lab.running.reports import FewReports
from lab.running.silence import NoSilence
from lab.running.slow import UnmarkedSlowTests
from lab.running.workers import is_worker
from tests.support.fresh_process import FreshProcesses, fresh_processes

keep_temporary_files_in_memory()  # before anything starts


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-limit",
        type=float,
        help="list the tests that take longer than these seconds and are not marked slow",
    )


def pytest_configure(config: pytest.Config) -> None:
    keep_terminal()  # pytest captures output only from the first test on
    if not is_worker(config):
        config.pluginmanager.register(NoSilence(alone=not config.getoption("numprocesses", None)))
    elif FewReports.are_enough(config):
        config.pluginmanager.register(FewReports())
    config.addinivalue_line(
        "markers", "quick: the essentials of a package; also in make test-quick"
    )
    config.addinivalue_line("markers", "slow: takes more than a second; not in make test")
    config.addinivalue_line(
        "markers", "exhaustive: another server, a test of tests, or more of the same; not in CI"
    )
    if seconds := config.getoption("slow_limit"):
        config.pluginmanager.register(UnmarkedSlowTests(seconds))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Disable the garbage collector during collection: nearly all new objects stay alive."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Restore process-wide settings that a program under test configures: fileConfig(), Litestar."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    if (root.level, root.handlers) != (level, handlers):
        root.setLevel(level)
        root.handlers[:] = handlers
        for known in logging.Logger.manager.loggerDict.values():
            if isinstance(known, logging.Logger):
                known.disabled = False
        logging.getLogger("alembic").setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def fresh() -> Iterator[FreshProcesses]:
    """Provide processes that have imported SQLAlchemy, but none of our code."""
    with fresh_processes() as found:
        yield found
