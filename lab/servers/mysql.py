"""MySQL: installed, or from Debian sid's packages, the only suite that has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.servers import debian, mysqld
from lab.servers.model import Server
from lab.servers.process import installed, new_folder, run

#: The package of a suite, if its name contains the version.
_PACKAGES: Mapping[str, str] = {"noble": "mysql-server-core-8.0"}

#: Closes a port and a folder that the tests do not use.
CLOSED = ("--mysqlx=OFF", "--secure-file-priv=NULL")


def start(suite: str | None = None) -> Server:
    """Start a new, empty server.

    :param suite: the suite of Debian or Ubuntu to unpack; None: see :func:`installation`.
    """
    program, options, origin = installation() if suite is None else unpacked(suite)
    with new_folder() as folder:
        make_data(program, options, folder / "data")
        options += [*CLOSED]
        options += ["--disable-log-bin"]  # it would only add a second sync to each commit
        return mysqld.start("mysql", program, options, folder, origin)


def make_data(program: Sequence[str], options: Sequence[str], data: Path) -> None:
    """Create the system tables of a new server in a new folder."""
    data_option = f"--datadir={data}"
    run([*program, *mysqld.base_options(), *options, "--initialize-insecure", data_option])


def installation() -> tuple[list[str], list[str], str]:
    """Return the command, the options it needs, and its origin."""
    found = installed("mysqld")
    # MariaDB installs a program with this name too.
    if found and "MariaDB" not in run([found, "--version"]):
        return [found], [], found
    return unpacked("sid")


def unpacked(suite: str) -> tuple[list[str], list[str], str]:
    """Return the same as :func:`installation`, for a suite's packages."""
    package = _PACKAGES.get(suite, "mysql-server-core")
    root = debian.unpacked(package, suite, licence="GPL-2.0")
    share = root / "usr/share/mysql"
    options = [f"--lc-messages-dir={share}", f"--character-sets-dir={share / 'charsets'}"]
    options += [f"--plugin-dir={root / 'usr/lib/mysql/plugin'}"]
    origin = f"{debian.distribution_of(suite)} {suite}, unpacked"
    return debian.command(root, "usr/sbin/mysqld"), options, origin
