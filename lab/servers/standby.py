"""A streaming standby of a PostgreSQL server."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from lab.servers import postgresql
from lab.servers.probe import wait_until_ready
from lab.servers.process import ServerProcess, free_port, is_root, new_folder, run

# PostgreSQL refuses to run as root.
_UNPRIVILEGED = "nobody"

_LIMITS = (
    *("max_connections", "max_prepared_transactions", "max_locks_per_transaction"),
    *("max_wal_senders", "max_worker_processes"),
)


@contextmanager
def hot_standby(url: str) -> Iterator[str]:
    """Copy the server at this URL, and let the copy follow it; yield the copy's URL.

    :raises UnavailableError: no binaries of that version, or the server allows no copy.
    """
    primary = sa.make_url(url)
    with new_folder() as folder:
        user = _UNPRIVILEGED if is_root() else None
        installation = postgresql._installation()
        if user is not None:
            installation = postgresql._installation_for(user, installation, folder)
        data, port = folder / "data", free_port()
        _copy(primary, installation, data)
        if user is not None:
            for path in (data, *data.rglob("*")):
                shutil.chown(path, user)
        settings = {
            "port": str(port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "16MB",
            **_at_least(primary),
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


def _at_least(primary: sa.URL) -> dict[str, str]:
    """Return the primary's settings that a standby needs at least in order to start.

    https://www.postgresql.org/docs/current/hot-standby.html#HOT-STANDBY-ADMIN
    """
    engine = sa.create_engine(primary)
    with engine.connect() as connection:
        found = {name: connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in _LIMITS}
    engine.dispose()
    return found


def _copy(primary: sa.URL, installation: Path, data: Path) -> None:
    """Copy the server's current data, with everything that a standby needs to follow it."""
    conninfo = f"host={primary.host} port={primary.port or 5432} user={primary.username}"
    program = str(installation / "bin" / "pg_basebackup")
    options = ["--checkpoint=fast", "--no-sync", "--write-recovery-conf"]
    options += [f"--dbname={conninfo} password={primary.password}"]
    run([program, "--pgdata", str(data), *options])
