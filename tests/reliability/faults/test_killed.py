"""The server itself is killed in the middle, with everything else that goes wrong around it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from lab.servers import Server, UnavailableError, start_private
from tests.reliability import Reliability, Soak
from tests.reliability.faults.crowd import POOL_TIMEOUT
from tests.reliability.faults.interrupts import Interrupts
from tests.reliability.faults.network import CutInMidPacket, HalfOpen, Reset, Stalled
from tests.reliability.faults.proxy import proxy_to
from tests.reliability.faults.scene import INJECTIONS, Scene
from tests.reliability.faults.terminated import Terminated
from tests.reliability.faults.together import Together
from tests.support.databases import Database

pytestmark = [pytest.mark.soak, pytest.mark.databases("postgresql", "mysql", "mariadb")]


@pytest.fixture
def server(database: Database) -> Iterator[Server]:
    """Start a server that nobody else uses, of the same kind."""
    try:
        server = start_private(database.name)
    except UnavailableError as exc:
        pytest.skip(f"no private {database.name}: {exc}")
    yield server
    server.stop()


def write_through(server: Server) -> None:
    """Have each commit on disk before it returns; PostgreSQL does so by default."""
    engine = sa.create_engine(server.url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            assert connection.exec_driver_sql("SHOW fsync").scalar() == "on"
        else:
            connection.exec_driver_sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


@pytest.mark.slow
def test_a_server_is_killed_while_everything_fails(
    server: Server, database: Database, soak: Soak, reliability: Reliability
) -> None:
    write_through(server)
    scene = Scene(server.url, database.column, soak, reliability)
    with proxy_to(server.url) as proxy:
        engine = scene.engine(proxy.url, pool_timeout=POOL_TIMEOUT)
        interrupts = Interrupts(engine)
        terminated = Terminated(engine, scene.direct, database.name)

        def kill_the_server() -> None:
            server.crash()
            terminated.restarted()

        kinds = (
            terminated,
            *(kind(proxy) for kind in (Reset, HalfOpen, Stalled, CutInMidPacket)),
            interrupts,
        )
        scene.survives(
            engine,
            Together(kinds),
            share=0.4,
            pause=interrupts.pause,
            injections=2 * INJECTIONS,
            in_the_middle=kill_the_server,
            was_killed=True,
        )
        scene.close()
