"""The only entry point of the database matrix.

A test with the fixture ``database`` runs once on each database. It limits itself with
``@pytest.mark.databases("postgresql", "mysql")`` or ``@pytest.mark.not_databases("sqlite")``.
``--databases`` limits a run; ``postgresql-pipeline`` and the poolers run only if it names them. The run skips an
unavailable database and explains why in the summary. If ``SA_DOCLOCK_TEST_REQUIRE`` names that
database, nothing runs at all. ``--pairwise`` runs a selection (support/pairwise.py).
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import sessionmaker

from lab.running import pairwise
from lab.running.controller import Controller, Found, register_tests
from lab.running.memory import keep_temporary_files_in_memory
from lab.running.progress import keep_terminal
from lab.running.reports import FewReports
from lab.running.scheduling import GroupScheduling
from lab.running.shares import SECOND, server_of, servers_for
from lab.running.silence import NoSilence
from lab.running.slow import UnmarkedSlowTests
from lab.running.workers import (
    check_required,
    is_worker,
    note_skipped,
    required,
    skipped,
    worker_input,
    worker_output,
)
from lab.servers import NAMES, Missing, Server, why_unobtainable
from lab.servers.postgresql_versions import STARTS
from lab.tds.engines import ENGINES
from lab.tsql.wheels import PARSER
from sa_doclock import LockingSession
from tests.support.actors import Actor
from tests.support.databases import MATRIX, PIPELINED, POOLERS, Database, new_sqlite_file, product
from tests.support.fresh_process import FreshProcesses, fresh_processes
from tests.support.poolers import FOUND as FOUND_POOLERS
from tests.support.poolers import PROGRAMS, Poolers

#: Folders of tests/integration whose tests check decisions of the library alone, like tests marked
#: own_logic. Their SQL does not depend on the journal mode of an SQLite file.
OWN_LOGIC = (
    *("batch", "claims", "documents", "gate", "guard", "instrumentation", "lock_order"),
    *("mappings", "mistakes", "on_commit", "pool_reset", "retry", "versions"),
)

keep_temporary_files_in_memory()  # before anything starts

pytest_plugins = ["tests.reliability.plugin", "pytester"]

#: Columns of the matrix that tests do not run on by default.
ONLY_NAMED = (PIPELINED, *POOLERS)

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
UNOBTAINABLE = pytest.StashKey[dict[str, str]]()
PRODUCTS = tuple(dict.fromkeys(map(product, MATRIX)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--databases",
        default=",".join(PRODUCTS),
        help=f"the databases to test on, separated by commas; of {', '.join(MATRIX)}",
    )
    parser.addoption(
        "--pairwise",
        action="store_true",
        help="pairs of test, database and parameters in place of all combinations",
    )
    parser.addoption(
        "--slow-limit",
        type=float,
        help="list the tests that take longer than these seconds and are not marked slow",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the options before anything starts."""
    keep_terminal()  # pytest captures output only from the first test on
    if not is_worker(config):
        config.pluginmanager.register(NoSilence(alone=not config.getoption("numprocesses", None)))
    elif FewReports.are_enough(config):
        config.pluginmanager.register(FewReports())
    for marker in ("databases", "not_databases"):
        config.addinivalue_line("markers", f"{marker}(*names): which databases this test is for")
    config.addinivalue_line("markers", "only_on(*names): which clusters this test is for")
    config.addinivalue_line(
        "markers", "own_logic: the library decides by itself; --pairwise runs it on any database"
    )
    config.addinivalue_line(
        "markers",
        "each_value: its parameters do not depend on each other; --pairwise runs each value, not each pair",
    )
    config.addinivalue_line(
        "markers", "quick: the essentials of a package; also in make test-quick"
    )
    config.addinivalue_line("markers", "slow: takes more than a second; not in make test")
    config.addinivalue_line("markers", "poolers: runs on each pooler, also where none is named")
    config.addinivalue_line(
        "markers", "exhaustive: another server, a test of tests, or more of the same; not in CI"
    )
    if seconds := config.getoption("slow_limit"):
        config.pluginmanager.register(UnmarkedSlowTests(seconds))
    config.stash[CONTROLLER] = Controller()
    config.stash[SERVERS] = {}
    config.stash[FOUND_POOLERS] = Poolers(config)
    config.stash[UNOBTAINABLE] = {name: why for name in NAMES if (why := why_unobtainable(name))}
    wanted = _named(config.getoption("databases"))
    if absent := _required() - set(map(product, wanted)):
        msg = f"SA_DOCLOCK_TEST_REQUIRE names what --databases leaves out: {', '.join(absent)}"
        raise pytest.UsageError(msg)
    for name in sorted(_required() & {*config.stash[UNOBTAINABLE]}):
        raise _required_is_missing(name, config.stash[UNOBTAINABLE][name])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses ``database`` once on each of its databases."""
    if "database" not in metafunc.fixturenames:
        return
    columns = _named(metafunc.config.getoption("databases"))
    if metafunc.definition.get_closest_marker("poolers"):
        columns = [*POOLERS] if set(columns) & {"postgresql", *POOLERS} else []
    elif is_own_logic(metafunc.definition):
        columns = [one for one in columns if one != "sqlite-journal"]
    for mark in metafunc.definition.iter_markers("databases"):
        columns = [column for column in columns if column in _columns(mark.args)]
    for mark in metafunc.definition.iter_markers("not_databases"):
        columns = [column for column in columns if column not in _columns(mark.args)]
    metafunc.parametrize("database", _obtainable(metafunc.config, columns), indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Disable the garbage collector during collection: nearly all new objects stay alive."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)  # after -m and -k: pairs of the remaining tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests without a database in this run, and tests that ``--pairwise`` does not select."""
    selected = [item for item in items if not _uses_database(item) or _column_of(item)]
    if config.getoption("pairwise"):
        selected = pairwise.select(selected, is_own_logic)
    kept = set(selected)
    if others := [item for item in items if item not in kept]:
        config.hook.pytest_deselected(items=others)
        items[:] = selected


@pytest.hookimpl(tryfirst=True)  # before pytest prints what the next hook returns
def pytest_collection_finish(session: pytest.Session) -> None:
    """Start all servers that the collected tests need, in parallel."""
    if session.config.option.collectonly:
        return
    config = session.config
    used = [product(column) for item in session.items if (column := _column_of(item))]
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
    column = _column_of(item) or ""
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


@pytest.fixture
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """Provide one database of the matrix; the test runs once for each."""
    column: str = request.param
    if column == PIPELINED:  # for every session, of any subclass
        defaults = LockingSession.__init__.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "pipeline", True)
    if product(column) == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")  # not created for tests on a server
        found = new_sqlite_file(column, folder)
    else:
        servers = request.config.stash[SERVERS]
        server = servers[server_of(product(column), _file_of(request.node), servers)]
        assert isinstance(server, Server)  # otherwise the test was skipped
        found = _database_at(request, column, server)
    yield found
    found.close()
    if found.name == "mssql":
        found.sent.check()


def _database_at(request: pytest.FixtureRequest, column: str, server: Server) -> Database:
    if column not in POOLERS:
        return Database(column, server.url, server.version)
    found = request.config.stash[FOUND_POOLERS].find(column, server.url)
    pooler = found.server
    ways = {"direct_url": found.direct_url, "standby_url": found.standby_url}
    return Database(column, pooler.url, pooler.version, **ways)


@pytest.fixture
def session_factory(database: Database) -> sessionmaker[LockingSession]:
    return sessionmaker(database.engine(), class_=LockingSession)


@pytest.fixture
def enter(
    database: Database, session_factory: Callable[[], LockingSession]
) -> Iterator[Callable[[str], Actor[LockingSession]]]:
    """Create actors by name. All of them leave together, so none waits for another's lock."""
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
    """The actor that acts first in most tests."""
    return enter("alice")


@pytest.fixture
def bob(enter: Callable[[str], Actor[LockingSession]]) -> Actor[LockingSession]:
    """The actor that acts second, and waits for alice in most tests."""
    return enter("bob")


@pytest.fixture
def carol(enter: Callable[[str], Actor[LockingSession]]) -> Actor[LockingSession]:
    """The actor that acts third, if two are not enough."""
    return enter("carol")


def _columns(names: Iterable[str]) -> list[str]:
    """Return the columns of the matrix for these names; ``sqlite`` stands for both SQLite columns."""
    wanted = [name.strip() for name in names]
    if unknown := [name for name in wanted if name not in MATRIX]:
        msg = f"no such database: {', '.join(unknown)}; there are {', '.join(MATRIX)}"
        raise pytest.UsageError(msg)
    return [column for column in MATRIX if column in wanted or product(column) in wanted]


def _named(option: str) -> list[str]:
    names = option.split(",")
    return [one for one in _columns(names) if one not in ONLY_NAMED or one in names]


def _obtainable(config: pytest.Config, columns: list[str]) -> list[str]:
    """Return the columns with an available server here; report the others prominently in the summary."""
    missing = config.stash[UNOBTAINABLE]
    for name in {product(column) for column in columns} & {*missing}:
        note_skipped(config, f"DATABASE {name}", missing[name])
    return [column for column in columns if product(column) not in missing]


def _required() -> set[str]:
    # tests/docs/browser.py checks chromium, and each test the other names that it uses.
    names = required() - {"chromium", *PROGRAMS, *CLUSTERS, *STARTS, *TOOLS}
    return set(map(product, _columns(names)))


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
    server = product(_column_of(item) or "sqlite")
    file = _file_of(item)
    return file if server == "sqlite" else server_of(server, file, found)


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def is_own_logic(item: pytest.Item) -> bool:
    folders = item.nodeid.partition("::")[0].split("/")
    is_of_folder = folders[:2] == ["tests", "integration"] and folders[2] in OWN_LOGIC
    return is_of_folder or item.get_closest_marker("own_logic") is not None


def _uses_database(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and "database" in item.fixturenames


def _column_of(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    column = None if callspec is None else callspec.params.get("database")
    return column if isinstance(column, str) else None  # otherwise no database is left for it
