"""Starts a server, in the same way for MySQL and MariaDB."""

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

#: PyMySQL takes 40 ms to prepare TLS, for each of a test run's thousands of connections.
WITHOUT_TLS = "ssl_disabled=true"


def base_options() -> list[str]:
    """Return the options of every call: ignore the machine's files, and allow root."""
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
    """Start a server on ``folder / "data"``, which must be initialised, and wait until it answers.

    :param first: SQL to run before creating the account and the database.
    :param password: of the account, if several servers share it.
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
            # A separate folder: when MariaDB starts, it deletes the temporary tables it finds there.
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
