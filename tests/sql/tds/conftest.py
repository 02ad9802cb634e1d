"""Real drivers, the requests that they send to SQL Server, and its answers, without a server.

A small server of TDS 7.4, "[MS-TDS]: Tabular Data Stream Protocol", listens on the loopback. It
records the requests, keeps each session by Microsoft's documented rules, and answers with
rows or with the errors that a test requests. It stores no rows and no locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote_plus

import pytest
from sqlalchemy import Engine, create_engine

from lab.running.workers import check_required, note_skipped
from lab.servers.model import UnavailableError
from lab.tds.drivers import DRIVERS, pyodbc, why_not
from lab.tds.engines import ENGINES, why_no_engine
from lab.tds.server import TDSServer, listening, wrong
from lab.tsql.checker import Checker, checking
from sa_doclock import LockingSession
from sa_doclock.dialects import strategy_for
from tests.sql.tsql.conftest import found_parser


@pytest.fixture(scope="session")
def parser(request: pytest.FixtureRequest) -> Iterator[Checker | None]:
    """Provide Microsoft's parser, or None if it is not available."""
    try:
        folder = found_parser(request.config)
    except UnavailableError:
        yield None
        return
    with checking(folder) as found:
        yield found


@pytest.fixture
def wire(parser: Checker | None) -> Iterator[TDSServer]:
    """Run the server; fail if the server itself failed, or received invalid T-SQL."""
    with listening() as server:
        yield server
    assert server.faults == []
    assert parser is None or wrong(server, parser) == {}


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    """Run the test with each available driver."""
    name: str = request.param
    if why := why_not(name):
        check_required(name, why)
        note_skipped(request.config, f"DRIVER {name} OF SQL SERVER", why)
        pytest.skip(f"no {name}: {why}")
    return name


@pytest.fixture(params=ENGINES)
def any_driver(request: pytest.FixtureRequest) -> str:
    """Run the test with each available driver that SQLAlchemy has a dialect for."""
    name: str = request.param
    if why := why_no_engine(name):
        check_required(name, why)
        note_skipped(request.config, f"DRIVER {name} OF SQL SERVER", why)
        pytest.skip(f"no {name}: {why}")
    return name


@pytest.fixture
def connection_string(driver: str, wire: TDSServer) -> str:
    """Return pyodbc's connection string for the server."""
    return DRIVERS[driver](wire.port)


@pytest.fixture
def engine(connection_string: str, wire: TDSServer) -> Iterator[Engine]:
    """Provide an engine with one connection, which connected before."""
    url = f"mssql+pyodbc:///?odbc_connect={quote_plus(connection_string)}"
    engine = create_engine(url, module=pyodbc(), pool_size=1, max_overflow=0)
    strategy_for(engine)
    wire.sent.clear()
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[LockingSession]:
    with LockingSession(engine) as session:
        yield session
