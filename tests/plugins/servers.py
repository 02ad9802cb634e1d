"""The servers of a run: started once for all processes, required or skipped, and stopped.

The run skips an unavailable database and explains why in the summary. If ``SA_DOCLOCK_TEST_REQUIRE``
names that database, nothing runs at all.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import pytest

from lab.running.controller import Controller, Found, register_tests
from lab.running.scheduling import GroupScheduling
from lab.running.shares import SECOND, server_of, servers_for
from lab.running.workers import (
    check_required,
    is_worker,
    note_skipped,
    required,
    skipped,
    worker_input,
    worker_output,
)
from lab.servers import Missing, Server
from lab.servers.postgresql_versions import STARTS
from lab.tds.engines import ENGINES
from lab.tsql.wheels import PARSER
from tests.plugins.matrix import UNOBTAINABLE, column_of, columns_of, file_of, named
from tests.support.databases import POOLERS, product
from tests.support.poolers import FOUND as FOUND_POOLERS
from tests.support.poolers import PROGRAMS, Poolers

#: Tests with one of these fixtures run in one process: creating the fixture takes longer than a test.
MADE_ONCE: Mapping[str, str] = {
    "checker": "parser",
    "cluster": "cluster",
    "parser": "parser",
}

#: Names for several servers in SA_DOCLOCK_TEST_REQUIRE.
CLUSTERS = ("standby", "galera", "group-replication")

#: The name of the SQL Server tools in SA_DOCLOCK_TEST_REQUIRE.
TOOLS = (PARSER, *ENGINES)

CONTROLLER = pytest.StashKey[Controller]()
SERVERS = pytest.StashKey[Found]()


@pytest.hookimpl(trylast=True)  # after the matrix
def pytest_configure(config: pytest.Config) -> None:
    """Check the options before anything starts."""
    config.stash[CONTROLLER] = Controller()
    config.stash[SERVERS] = {}
    config.stash[FOUND_POOLERS] = Poolers(config)
    wanted = named(config.getoption("databases"))
    if absent := _required() - set(map(product, wanted)):
        msg = f"SA_DOCLOCK_TEST_REQUIRE names what --databases leaves out: {', '.join(absent)}"
        raise pytest.UsageError(msg)
    for name in sorted(_required() & {*config.stash[UNOBTAINABLE]}):
        raise _required_is_missing(name, config.stash[UNOBTAINABLE][name])


@pytest.hookimpl(tryfirst=True)  # before pytest prints what the next hook returns
def pytest_collection_finish(session: pytest.Session) -> None:
    """Start all servers that the collected tests need, in parallel."""
    if session.config.option.collectonly:
        return
    config = session.config
    used = [product(column) for item in session.items if (column := column_of(item))]
    if is_worker(config):  # the controller starts them, and checks the required databases
        address = worker_input(config)["controller"]

        def groups(found: Found) -> dict[str, str]:
            return {item.nodeid: _group_of(item, found) for item in session.items}

        config.stash[SERVERS] |= register_tests(address, servers_for(used), groups)
    else:
        config.stash[SERVERS] |= config.stash[CONTROLLER].find(used)
        _check_required(config.stash[SERVERS])
    gc.freeze()  # the tests themselves: garbage collection need not visit them again


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Print the servers that the tests run on."""
    return _versions(config.stash[SERVERS])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Report to a worker where to register its tests."""
    node.workerinput["controller"] = node.config.stash[CONTROLLER].address()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log, config.stash[CONTROLLER].groups)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any) -> None:
    """Check and print once, in the controller, the requests of the first worker."""
    config: pytest.Config = node.config
    found = config.stash[CONTROLLER].found
    _check_required(found)
    if not config.stash[SERVERS]:
        config.stash[SERVERS] |= found
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None
        reporter.ensure_newline()
        for line in _versions(found):
            reporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report a worker's skipped tests to the controller."""
    if is_worker(session.config):
        worker_output(session.config)["skipped"] = skipped(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Record the tests that a worker skipped; a crashed worker reports none."""
    for what, why in getattr(node, "workeroutput", {}).get("skipped", {}).items():
        note_skipped(node.config, what, why)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose database is missing. Doing it here, not in the fixture, lets the summary add them up."""
    column = column_of(item) or ""
    server = item.config.stash[SERVERS].get(product(column))
    if isinstance(server, Missing):
        if column in POOLERS:
            check_required(column.partition("-")[0], server.reason)
        pytest.skip(f"no {column}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print loudly which tests were skipped."""
    for server in config.stash[SERVERS].values():
        if isinstance(server, Missing):
            note_skipped(config, f"DATABASE {server.name}", server.reason)
    for what, why in skipped(config).items():
        terminalreporter.write_line(f"SKIPPED {what}: {why}", yellow=True, bold=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the poolers, then the servers."""
    if FOUND_POOLERS in config.stash:
        config.stash[FOUND_POOLERS].stop()
    if CONTROLLER in config.stash:
        config.stash[CONTROLLER].stop()


def _required() -> set[str]:
    # tests/docs/browser.py checks chromium, and each test the other names that it uses.
    names = required() - {"chromium", *PROGRAMS, *CLUSTERS, *STARTS, *TOOLS}
    return set(map(product, columns_of(names)))


def _check_required(found: Found) -> None:
    for name in sorted(_required()):
        server = found.get(name)
        if isinstance(server, Missing):
            raise _required_is_missing(name, server.reason)


def _required_is_missing(name: str, why: str) -> pytest.UsageError:
    return pytest.UsageError(f"SA_DOCLOCK_TEST_REQUIRE names {name}, but there is none: {why}")


def _versions(found: Found) -> list[str]:
    first = (server for name, server in found.items() if name not in SECOND.values())
    return [f"{s.version} ({s.origin})" for s in first if isinstance(s, Server)]


def _group_of(item: pytest.Item, found: Found) -> str:
    """Return the group of this test: tests of one group run in one process.

    A server belongs to one process: its lists of sessions, waits and named locks, its accounts and
    its settings span all of its databases.  SQLite's tests have files.
    """
    for fixture, group in MADE_ONCE.items():
        if fixture in getattr(item, "fixturenames", ()):
            return group
    server = product(column_of(item) or "sqlite")
    file = file_of(item)
    return file if server == "sqlite" else server_of(server, file, found)
