"""The start of a server, the same for MySQL and MariaDB."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Sequence
from pathlib import Path

from lab.servers.model import Server
from lab.servers.probe import wait_until_ready
from lab.servers.process import ServerProcess, free_port, is_root

# The isolation level, the lock timeouts and InnoDB's deadlock detection stay at their defaults.
_OPTIONS = (
    "--bind-address=127.0.0.1",
    "--max-connections=300",
    "--character-set-server=utf8mb4",
    "--performance-schema=ON",
    "--innodb-buffer-pool-size=64M",
    "--innodb-flush-log-at-trx-commit=2",  # written at each commit, synced once a second
)

#: To make ready for TLS takes PyMySQL 40 ms, at each of the thousands of connections of a test run.
WITHOUT_TLS = "ssl_disabled=true"


def base_options() -> list[str]:
    """Return the options of every call: none of the machine's files, and leave to run as root."""
    return ["--no-defaults", *(["--user=root"] if is_root() else [])]


def start(
    name: str,
    program: Sequence[str],
    options: Sequence[str],
    folder: Path,
    origin: str,
    *,
    first: str = "",
    password: str = "",
) -> Server:
    """Start a server on ``folder / "data"``, which is initialised, and wait until it answers.

    :param first: SQL to run before the account and the database are made.
    :param password: of the account, where several servers have the same one.
    """
    password = password or secrets.token_hex(8)
    accounts = folder / "accounts.sql"
    accounts.write_text(
        f"{first}\n"
        "CREATE DATABASE IF NOT EXISTS doclock;\n"
        f"CREATE USER IF NOT EXISTS 'doclock'@'%' IDENTIFIED BY '{password}';\n"
        "GRANT ALL PRIVILEGES ON *.* TO 'doclock'@'%' WITH GRANT OPTION;\n",
        encoding="ascii",
    )
    port = free_port()
    process = ServerProcess(
        [
            *(*program, *base_options(), *_OPTIONS, *options),
            *(f"--datadir={folder / 'data'}", f"--socket={folder / 'socket'}"),
            *(f"--pid-file={folder / 'pid'}", f"--port={port}", f"--init-file={accounts}"),
            # Of its own: MariaDB deletes the temporary tables that it finds there when it starts.
            f"--tmpdir={folder}",
        ],
        folder,
        stop_signal=signal.SIGKILL,  # the data is thrown away, and nothing is kept elsewhere
    )
    url = f"mysql+pymysql://doclock:{password}@127.0.0.1:{port}/doclock?{WITHOUT_TLS}"
    try:
        version = wait_until_ready(name, url, process.check_alive)
    except BaseException:
        process.stop()
        raise

    def crash() -> None:
        process.crash()
        wait_until_ready(name, url, process.check_alive)

    return Server(name, url, version, origin, process.stop, crash)
