"""The database matrix enters here, and nowhere else.

A test that asks for the fixture ``database`` runs once on each database. It limits itself with
``@pytest.mark.databases("postgresql", "mysql")`` or ``@pytest.mark.not_databases("sqlite")``.
``--databases`` limits a run; ``postgresql-pipeline`` runs only where it is named there. A database
that is not there is skipped, with a line in the summary that says why, unless
``SA_DOCLOCK_TEST_REQUIRE`` names it: then nothing runs at all.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession
from tests.support.actors import Actor
from tests.support.databases import MATRIX, PIPELINED, Database, new_sqlite_file, product
from tests.support.servers import NAMES, Missing, Server, find_servers

#: Folders of tests/integration whose tests prove what the library decides by itself. What a database has to do with
#: it is SQL that does not depend on the journal of an SQLite file.
OWN_LOGIC = (
    *("batch", "claims", "documents", "gate", "guard", "instrumentation", "lock_order"),
    *("mistakes", "on_commit", "pool_reset", "retry"),
)

pytest_plugins = ["tests.reliability.plugin"]

SERVERS = pytest.StashKey[dict[str, Server | Missing]]()
PRODUCTS = tuple(dict.fromkeys(map(product, MATRIX)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--databases``."""
    parser.addoption(
        "--databases",
        default=",".join(PRODUCTS),
        help=f"the databases to test on, separated by commas; of {', '.join(MATRIX)}",
    )
    parser.addoption(
        "--own-logic-on",
        default=",".join((*PRODUCTS, PIPELINED)),
        help=f"of these, the ones for the tests of {', '.join(OWN_LOGIC)}",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check what was asked for before anything is started."""
    for marker in ("databases", "not_databases"):
        config.addinivalue_line("markers", f"{marker}(*names): which databases this test is for")
    config.stash[SERVERS] = {}
    wanted = _named(config.getoption("databases"))
    if absent := _required() - set(map(product, wanted)):
        msg = f"SA_DOCLOCK_TEST_REQUIRE names what --databases leaves out: {', '.join(absent)}"
        raise pytest.UsageError(msg)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses ``database`` once on each database that it is for."""
    if "database" not in metafunc.fixturenames:
        return
    columns = _named(metafunc.config.getoption("databases"))
    if metafunc.module.__name__.removeprefix("tests.integration.").split(".")[0] in OWN_LOGIC:
        wanted = _named(metafunc.config.getoption("own_logic_on"))
        columns = [one for one in columns if one in wanted and one != "sqlite-journal"]
    for mark in metafunc.definition.iter_markers("databases"):
        columns = [column for column in columns if column in _columns(mark.args)]
    for mark in metafunc.definition.iter_markers("not_databases"):
        columns = [column for column in columns if column not in _columns(mark.args)]
    metafunc.parametrize("database", columns, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out a test that is for none of the databases of this run."""
    idle = [item for item in items if _uses_database(item) and _column_of(item) is None]
    if idle:
        config.hook.pytest_deselected(items=idle)
        items[:] = [item for item in items if item not in idle]


@pytest.hookimpl(tryfirst=True)  # before pytest prints what the next hook returns
def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the servers that the collected tests need, all at the same time."""
    if session.config.option.collectonly:
        return
    used = {product(column) for item in session.items if (column := _column_of(item))}
    found = session.config.stash[SERVERS]
    found |= find_servers(name for name in NAMES if name in used)
    missing = {server.name: server for server in found.values() if isinstance(server, Missing)}
    for name in missing.keys() & _required():
        msg = f"SA_DOCLOCK_TEST_REQUIRE names {name}, but there is none: {missing[name].reason}"
        raise pytest.UsageError(msg)
    gc.freeze()  # the tests themselves: who collects garbage need not look at them again


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Print which servers the tests run on."""
    found = config.stash[SERVERS].values()
    return [f"{s.version} ({s.origin})" for s in found if isinstance(s, Server)]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose database is missing; here, not in the fixture, so that they add up."""
    if isinstance(item.config.stash[SERVERS].get(product(_column_of(item) or "")), Missing):
        pytest.skip(f"no {_column_of(item)}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say loudly what was not tested."""
    for server in config.stash[SERVERS].values():
        if isinstance(server, Missing):
            line = f"SKIPPED DATABASE {server.name}: {server.reason}"
            terminalreporter.write_line(line, yellow=True, bold=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers, all at the same time."""
    with ThreadPoolExecutor() as pool:
        for server in config.stash.get(SERVERS, {}).values():
            if isinstance(server, Server):
                pool.submit(server.stop)


@pytest.fixture
def database(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Database]:
    """Give the test one database of the matrix; it runs once for each."""
    column: str = request.param
    if column == PIPELINED:  # wherever a session is made, and by whatever subclass
        defaults = LockingSession.__init__.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "pipeline", True)
    if product(column) == "sqlite":
        found = new_sqlite_file(column, tmp_path)
    else:
        server = request.config.stash[SERVERS][product(column)]
        assert isinstance(server, Server)  # else the test has been skipped
        found = Database(column, server.url, server.version)
    yield found
    found.close()


@pytest.fixture
def session_factory(database: Database) -> sessionmaker[LockingSession]:
    """Make the sessions of the actors."""
    return sessionmaker(database.engine(), class_=LockingSession)


@pytest.fixture
def enter(
    database: Database, session_factory: Callable[[], LockingSession]
) -> Iterator[Callable[[str], Actor[LockingSession]]]:
    """Bring actors on by name; all of them leave together, so none waits for another's lock."""
    cast: list[Actor[LockingSession]] = []

    def enter_actor(name: str) -> Actor[LockingSession]:
        cast.append(Actor(name, session_factory, database))
        return cast[-1]

    yield enter_actor
    for actor in cast:
        actor.leave()
    for actor in cast:
        actor.join()


@pytest.fixture
def alice(enter: Callable[[str], Actor[LockingSession]]) -> Actor[LockingSession]:
    """Act first in most tests."""
    return enter("alice")


@pytest.fixture
def bob(enter: Callable[[str], Actor[LockingSession]]) -> Actor[LockingSession]:
    """Act second, and wait for alice in most tests."""
    return enter("bob")


@pytest.fixture
def carol(enter: Callable[[str], Actor[LockingSession]]) -> Actor[LockingSession]:
    """Act third, where two are not enough."""
    return enter("carol")


def _columns(names: Iterable[str]) -> list[str]:
    """Return the columns of the matrix for these names; ``sqlite`` stands for both of its own."""
    wanted = [name.strip() for name in names]
    if unknown := [name for name in wanted if name not in MATRIX]:
        msg = f"no such database: {', '.join(unknown)}; there are {', '.join(MATRIX)}"
        raise pytest.UsageError(msg)
    return [column for column in MATRIX if column in wanted or product(column) in wanted]


def _named(option: str) -> list[str]:
    """Return the columns that an option stands for."""
    names = option.split(",")
    return [one for one in _columns(names) if one != PIPELINED or PIPELINED in names]


def _required() -> set[str]:
    names = os.environ.get("SA_DOCLOCK_TEST_REQUIRE", "").split(",")
    return set(map(product, _columns(name for name in names if name.strip())))


def _uses_database(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and "database" in item.fixturenames


def _column_of(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    column = None if callspec is None else callspec.params.get("database")
    return column if isinstance(column, str) else None  # else it has run out of databases
