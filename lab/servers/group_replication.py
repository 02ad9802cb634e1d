"""A group of MySQL servers on this machine (Group Replication), with the plugin from MySQL's own package.

Each server starts with a copy of the same data, so a joining server has nothing to recover.
"""

from __future__ import annotations

import secrets
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from lab.servers import mysql, mysqld
from lab.servers.model import EndedError, Server, UnavailableError
from lab.servers.process import free_port, new_folder

_PLUGIN = "group_replication.so"
_OPTIONS = (
    f"--plugin-load-add={_PLUGIN}",
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--group-replication-start-on-boot=OFF",
    "--group-replication-recovery-get-public-key=ON",
    "--report-host=127.0.0.1",
)
_SEVERAL_PRIMARIES = (
    "--group-replication-single-primary-mode=OFF",
    "--group-replication-enforce-update-everywhere-checks=ON",
)
_LOCAL = "SET SESSION sql_log_bin = OFF;"  # not a transaction of the group


@dataclass(frozen=True)
class Group:
    """Servers with the same rows; the first server, or each of them, accepts writes.

    If the first server fails, the group elects the last one.
    """

    nodes: tuple[Server, ...]
    stop: Callable[[], None]


def start(size: int = 3, *, several_primaries: bool = False, tries: int = 3) -> Group:
    """Start the members, and wait until each sees all the others.

    :raises UnavailableError: no such server or plugin is here, or the members do not join.
    """
    try:
        return _start(size, _SEVERAL_PRIMARIES if several_primaries else ())
    except EndedError:  # another process took the port
        if tries == 1:
            raise
        return start(size, several_primaries=several_primaries, tries=tries - 1)


def _start(size: int, primaries: tuple[str, ...]) -> Group:
    program, options, origin = mysql.installation()
    ports = [free_port() for _ in range(size)]
    seeds = ",".join(map(_address, ports))
    with ExitStack() as stack:
        folders = [stack.enter_context(new_folder()) for _ in ports]
        mysql.make_data(program, [*options, "--disable-log-bin"], folders[0] / "data")
        (folders[0] / "data" / "auto.cnf").unlink()  # each server creates its own UUID
        for folder in folders[1:]:
            shutil.copytree(folders[0] / "data", folder / "data")
        options = [*options, *mysql.CLOSED, *_OPTIONS, *primaries]
        options.append(f"--group-replication-group-name={uuid.uuid4()}")
        options.append(f"--group-replication-group-seeds={seeds}")
        password = secrets.token_hex(8)
        members = []
        for number, (port, folder) in enumerate(zip(ports, folders, strict=True), start=1):
            own = (
                f"--server-id={number}",
                f"--group-replication-local-address={_address(port)}",
                f"--group-replication-member-weight={50 + number}",
            )
            member = mysqld.start(
                "mysql", program, [*options, *own], folder, origin, first=_LOCAL, password=password
            )
            stack.callback(member.stop)
            _join(member.url, bootstrap=number == 1)
            members.append(member)
        for member in members:
            _wait_until_all(member.url, size)
        started = stack.pop_all()
    return Group(tuple(members), started.close)


def _address(port: int) -> str:
    return f"127.0.0.1:{port}"


def _join(url: str, *, bootstrap: bool) -> None:
    account = sa.make_url(url)
    begin = f"START GROUP_REPLICATION USER='{account.username}', PASSWORD='{account.password}'"
    with _engine(url).connect() as connection:
        plugins = "SELECT COUNT(*) FROM information_schema.plugins WHERE plugin_name = "
        if not connection.exec_driver_sql(f"{plugins}'group_replication'").scalar():
            msg = f"this MySQL has no {_PLUGIN}"
            raise UnavailableError(msg)
        if bootstrap:
            connection.exec_driver_sql("SET GLOBAL group_replication_bootstrap_group = ON")
        try:
            connection.exec_driver_sql(begin)
        except sa.exc.DBAPIError as error:
            raise UnavailableError(str(error.orig)) from error
        if bootstrap:
            connection.exec_driver_sql("SET GLOBAL group_replication_bootstrap_group = OFF")


def _wait_until_all(url: str, size: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    query = sa.text("SELECT member_state FROM performance_schema.replication_group_members")
    while True:
        with _engine(url).connect() as connection:
            states = list(connection.scalars(query))
        if states == ["ONLINE"] * size:
            return
        if time.monotonic() > deadline:
            msg = f"the members have not come together within {seconds:g} s: {states}"
            raise UnavailableError(msg)
        time.sleep(0.05)


def _engine(url: str) -> sa.Engine:
    return sa.create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
