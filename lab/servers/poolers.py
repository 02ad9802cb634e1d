"""Poolers in front of a PostgreSQL server, from Debian's packages ``pgbouncer`` and ``pgpool2``."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from lab.servers import debian
from lab.servers.model import Server
from lab.servers.probe import wait_until_ready
from lab.servers.process import (
    ServerProcess,
    free_port,
    installed,
    is_root,
    new_folder,
    run,
)

# Neither should run as root; they may even refuse to.
_UNPRIVILEGED = "nobody"

_LICENCES = {"pgbouncer": "ISC", "pgpool2": "a licence like PostgreSQL's"}

_PGBOUNCER = """\
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = {mode}
max_client_conn = 500
default_pool_size = 100
ignore_startup_parameters = extra_float_digits,options
"""

# Each child forwards one client's connections at a time; another client waits for a free child.
# From 4.4 on, unix_socket_directories names the socket's folder.
_PGPOOL = """\
listen_addresses = '127.0.0.1'
port = {own_port}
unix_socket_directories = '{folder}'
socket_dir = '{folder}'
pcp_listen_addresses = ''
pcp_socket_dir = '{folder}'
pcp_port = {pcp_port}
pid_file_name = '{folder}/pgpool.pid'
logdir = '{folder}'
pool_passwd = '{folder}/pool_passwd'
enable_pool_hba = on
backend_clustering_mode = 'streaming_replication'
backend_hostname0 = '{host}'
backend_port0 = {port}
backend_weight0 = 0
backend_flag0 = 'ALWAYS_PRIMARY|DISALLOW_TO_FAILOVER'
backend_hostname1 = '{standby_host}'
backend_port1 = {standby_port}
backend_weight1 = 1
backend_flag1 = 'DISALLOW_TO_FAILOVER'
load_balance_mode = on
num_init_children = 40
max_pool = 1
sr_check_period = 1
sr_check_user = '{user}'
sr_check_database = 'postgres'
{settings}
"""


def start_pgpool(url: str, standby_url: str, **settings: str) -> Server:
    """Start pgpool-II in front of a primary and its standby; it sends balanced queries to the standby.

    :param settings: for pgpool.conf, in addition to the defaults.
    :raises UnavailableError: the package is not available here, or the program does not start.
    """
    program = _program("pgpool2", "pgpool")
    primary, standby = sa.make_url(url), sa.make_url(standby_url)

    def command(folder: Path, port: int) -> list[str]:
        text = _PGPOOL.format(
            own_port=port,
            pcp_port=free_port(),
            folder=folder,
            host=primary.host,
            port=primary.port or 5432,
            standby_host=standby.host,
            standby_port=standby.port or 5432,
            user=primary.username,
            settings="\n".join(f"{name} = '{value}'" for name, value in settings.items()),
        )
        files = {
            "pgpool.conf": text,
            "pcp.conf": "",
            "pool_hba.conf": "host all all 127.0.0.1/32 trust\n",
            "pool_passwd": f"{primary.username}:TEXT{primary.password}\n",
        }
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
        paths = (str(folder / name) for name in ("pgpool.conf", "pcp.conf", "pool_hba.conf"))
        options = (word for pair in zip(("-f", "-F", "-a"), paths, strict=True) for word in pair)
        return [*program, "-n", "-D", *options]

    reported = run(["sh", "-c", '"$@" --version 2>&1', "sh", *program])
    return _start(reported.split(" (")[0].strip(), url, command, signal.SIGINT)


def start_pgbouncer(url: str, mode: str) -> Server:
    """Start PgBouncer in front of this server.

    :param mode: ``transaction`` or ``session``.
    :raises UnavailableError: the package is not available here, or the program does not start.
    """
    program = _program("pgbouncer", "pgbouncer")
    server = sa.make_url(url)

    def command(folder: Path, port: int) -> list[str]:
        users, settings = folder / "users.txt", folder / "pgbouncer.ini"
        users.write_text(f'"{server.username}" "{server.password}"\n', encoding="utf-8")
        text = _PGBOUNCER.format(
            host=server.host, port=server.port or 5432, own_port=port, users=users, mode=mode
        )
        settings.write_text(text, encoding="utf-8")
        return [*program, str(settings)]

    version = run([*program, "--version"]).splitlines()[0]
    return _start(f"{version}, {mode} pooling", url, command, signal.SIGINT)


def _start(
    version: str, url: str, command: Callable[[Path, int], list[str]], stop: signal.Signals
) -> Server:
    """Run a pooler, and wait until it answers; ``command`` writes its files into the folder."""
    user, port = (_UNPRIVILEGED if is_root() else None), free_port()
    with new_folder() as folder:
        words = command(folder, port)
        if user is not None:
            for path in (folder, *folder.rglob("*")):
                shutil.chown(path, user)
        process = ServerProcess(words, folder, stop_signal=stop, user=user)
    own = sa.make_url(url).set(host="127.0.0.1", port=port)
    text = own.render_as_string(hide_password=False)
    try:
        wait_until_ready("postgresql", text, process.check_alive)
    except BaseException:
        process.stop()
        raise
    return Server("postgresql", text, version, "Debian's package", process.stop)


def _program(package: str, name: str) -> list[str]:
    """Find the program, installed or unpacked.  :raises UnavailableError: it is missing."""
    found = installed(name)
    if found is not None:
        return [found]
    root = debian.unpacked(package, debian._own_suite(package), licence=_LICENCES[package])
    return debian.command(root, f"usr/sbin/{name}")
