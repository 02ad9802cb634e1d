"""The pytest plugin: the option, the fixtures, the table at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from lab.running.workers import is_worker, worker_output
from tests.reliability.record import (
    Reliability,
    Soak,
    as_json,
    from_json,
    long_table,
    save,
    short_table,
)

RELIABILITY = pytest.StashKey[Reliability]()

#: An example of tests/reliability/fuzz takes about 4 ms.
EXAMPLES_PER_SECOND = 80


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak-seconds",
        type=float,
        default=0,
        help="the long form of the tests marked soak, and how long they last on each server",
    )
    parser.addoption(
        "--soak-record",
        type=Path,
        help="if all went well, write what was survived to this file; see tests/reliability",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: has a long form, which make soak runs")
    config.stash[RELIABILITY] = Reliability()
    if seconds := config.getoption("soak_seconds"):
        settings.register_profile("soak", max_examples=int(seconds * EXAMPLES_PER_SECOND))
        settings.load_profile("soak")


@pytest.fixture(scope="session")
def soak(pytestconfig: pytest.Config) -> Soak:
    """Return how long to continue."""
    reporter = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    capture = pytestconfig.pluginmanager.get_plugin("capturemanager")

    def say(text: str) -> None:
        assert reporter is not None
        assert capture is not None
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(text)

    return Soak(pytestconfig.getoption("soak_seconds"), say)


@pytest.fixture(scope="session")
def reliability(pytestconfig: pytest.Config) -> Reliability:
    """Collect the injected and survived faults."""
    return pytestconfig.stash[RELIABILITY]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Pass the results of a pytest-xdist worker to the controller."""
    if is_worker(session.config):
        worker_output(session.config)["reliability"] = as_json(session.config.stash[RELIABILITY])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add a worker's results; a crashed worker has none."""
    saved = getattr(node, "workeroutput", {}).get("reliability")
    if saved:
        node.config.stash[RELIABILITY].add(from_json(saved))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Print the results, and record them."""
    found = config.stash[RELIABILITY]
    rows = found.rows()
    record = config.getoption("soak_record")
    if record and exitstatus == pytest.ExitCode.OK:
        save(found, record)
    if not rows and not found.inputs:
        return
    terminalreporter.section("injected and survived")
    if rows:
        render = long_table if config.getoption("soak_seconds") else short_table
        terminalreporter.write_line(render(rows))
    for what, inputs in found.inputs.items():
        terminalreporter.write_line(f"inputs fuzzed, {what}: {inputs:,}")
