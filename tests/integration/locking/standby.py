"""A streaming standby of the PostgreSQL server that the tests run on."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.databases import Database
from tests.support.servers import postgresql
from tests.support.servers.model import UnavailableError
from tests.support.servers.probe import wait_until_ready
from tests.support.servers.process import ServerProcess, free_port, is_root, new_folder, run
from tests.support.waits import wait_until

# PostgreSQL refuses to run as root.
_UNPRIVILEGED = "nobody"


class Replication:
    """A primary, and a standby that streams from it."""

    def __init__(self, primary: sa.Engine, standby: sa.Engine) -> None:
        self.primary = primary
        self.standby = standby
        self._observer = standby.execution_options(isolation_level="AUTOCOMMIT")

    def catch_up(self) -> None:
        """Return when the standby has replayed what the primary has flushed: it is sent no more."""
        with self.primary.connect() as connection:
            position = connection.exec_driver_sql(
                "SELECT pg_current_wal_flush_lsn()::text"
            ).scalar_one()
        self.wait_until(f"SELECT pg_last_wal_replay_lsn() >= '{position}'")

    def set(self, name: str, value: str) -> None:
        """Change a setting of the standby."""
        with self._observer.connect() as connection:
            connection.exec_driver_sql(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
        self.wait_until(f"SELECT setting = '{value}' FROM pg_settings WHERE name = '{name}'")

    def wait_until(self, question: str) -> None:
        """Ask the standby until it says yes."""
        with self._observer.connect() as connection:
            wait_until(lambda: connection.exec_driver_sql(question).scalar())


@pytest.fixture(scope="module")
def replications() -> Iterator[dict[str, Replication]]:
    """Keep a standby for the tests of a file: to copy a server takes longer than a test."""
    with ExitStack() as stack:
        yield _Kept(stack)


class _Kept(dict[str, Replication]):
    """The standbys, made when they are asked for, by the URLs of their primaries."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__()
        self._stack = stack

    def __missing__(self, url: str) -> Replication:
        standby = sa.create_engine(self._stack.enter_context(hot_standby(url)))
        primary = sa.create_engine(url)
        self._stack.callback(standby.dispose)
        self._stack.callback(primary.dispose)
        self[url] = Replication(primary, standby)
        return self[url]


@pytest.fixture
def replication(documents: Database, replications: dict[str, Replication]) -> Replication:
    """Give the test a standby that has the rows of tests/support/models.py by now."""
    try:
        found = replications[documents.url]
    except UnavailableError as exc:
        pytest.skip(f"no standby of this server: {exc}")
    found.wait_until("SELECT status = 'streaming' FROM pg_stat_wal_receiver")
    found.catch_up()
    return found


@contextmanager
def hot_standby(url: str) -> Iterator[str]:
    """Copy the server at this URL, and let the copy follow it; give its URL.

    :raises UnavailableError: no binaries of that version, or the server lets nobody copy it.
    """
    primary = sa.make_url(url)
    with new_folder() as folder:
        user = _UNPRIVILEGED if is_root() else None
        installation = postgresql._installation()
        if user is not None:
            installation = postgresql._copy_for(user, installation, folder)
        data, port = folder / "data", free_port()
        _copy(primary, installation, data)
        if user is not None:
            for path in (data, *data.rglob("*")):
                shutil.chown(path, user)
        settings = {
            "port": str(port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "300",
            "shared_buffers": "16MB",
        }
        words = (word for key, value in settings.items() for word in ("-c", f"{key}={value}"))
        process = ServerProcess(
            [str(installation / "bin" / "postgres"), "-D", str(data), *words],
            folder,
            stop_signal=signal.SIGQUIT,
            user=user,
        )
    standby = primary.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    try:
        wait_until_ready("postgresql", standby, process.check_alive)
        yield standby
    finally:
        process.stop()


def _copy(primary: sa.URL, installation: Path, data: Path) -> None:
    """Copy the server as it is now, with all that a standby needs to follow it."""
    conninfo = f"host={primary.host} port={primary.port or 5432} user={primary.username}"
    program = str(installation / "bin" / "pg_basebackup")
    options = ["--checkpoint=fast", "--no-sync", "--write-recovery-conf"]
    options += [f"--dbname={conninfo} password={primary.password}"]
    run([program, "--pgdata", str(data), *options])
