"""MariaDB: installed, or from Debian's packages: 11.8 or newer in sid, 10.11 in bookworm."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.servers import debian, mysqld
from lab.servers.flavour import oldest_wanted
from lab.servers.model import Server, UnavailableError
from lab.servers.process import installed, new_folder, run

#: The package of a suite, if its name contains the version.
_PACKAGES: Mapping[str, str] = {"jammy": "mariadb-server-core-10.6"}

# The files that mariadb-install-db sends to the server, in order, without the help texts. The script itself
# would start an unpacked server with the machine's own libraries.
_SYSTEM_TABLES = (
    "m*_system_tables.sql",
    "m*_performance_tables.sql",
    "m*_system_tables_data.sql",
    "m*_sys_schema.sql",
)


def start(suite: str | None = None) -> Server:
    """Start a new, empty server.

    :param suite: the suite of Debian or Ubuntu to unpack; None: see :func:`installation`.
    """
    program, share, options, origin = installation() if suite is None else unpacked(suite)
    with new_folder() as folder:
        make_data(program, share, options, folder / "data")
        return mysqld.start("mariadb", program, options, folder, origin)


def make_data(program: Sequence[str], share: Path, options: Sequence[str], data: Path) -> None:
    """Create the system tables of a new server in a new folder."""
    data.mkdir()
    run(
        [
            *(*program, *mysqld.base_options(), *options, "--bootstrap"),
            *(f"--datadir={data}", f"--tmpdir={data.parent}"),
        ],
        text=_bootstrap(share),
    )


def installation() -> tuple[list[str], Path, list[str], str]:
    """Return the command, the folder of its SQL scripts, the options it needs, and its origin."""
    found = installed("mariadbd")
    if found and not oldest_wanted():
        reported = run([found, "--no-defaults", "--verbose", "--help"])
        return [found], scripts_of(Path(found), reported), [], found
    return unpacked("bookworm" if oldest_wanted() else "sid")


def unpacked(suite: str) -> tuple[list[str], Path, list[str], str]:
    """Return the same as :func:`installation`, for a suite's packages."""
    package = _PACKAGES.get(suite, "mariadb-server-core")
    root = debian.unpacked(package, suite, licence="GPL-2.0")
    shares = [path.parent for path in root.glob("usr/share/*/m*_system_tables.sql")]
    options = [f"--lc-messages-dir={shares[0]}", f"--character-sets-dir={shares[0] / 'charsets'}"]
    options += [f"--plugin-dir={root / 'usr/lib/mysql/plugin'}"]
    return (
        debian.command(root, "usr/sbin/mariadbd"),
        shares[0],
        options,
        f"{debian.distribution_of(suite)} {suite}, unpacked",
    )


def scripts_of(program: Path, reported: str) -> Path:
    """Return the folder with the SQL scripts of an installed server.

    :param reported: the server's help.  Debian's server shows "(No default value)" for lc-messages-dir.
    :raises UnavailableError: the scripts are neither there nor in the usual folders near the program.
    """
    match = re.search(r"^lc-messages-dir\s+(/.*)$", reported, re.MULTILINE)
    shares = [program.parents[1] / "share" / name for name in ("mariadb", "mysql")]
    for share in [Path(match[1].strip()), *shares] if match else shares:
        if any(share.glob(_SYSTEM_TABLES[0])):
            return share
    msg = f"the SQL scripts of {program} are not found"
    raise UnavailableError(msg)


def _bootstrap(share: Path) -> str:
    scripts = [next(iter(share.glob(pattern)), None) for pattern in _SYSTEM_TABLES]
    if None in scripts:
        msg = f"{share} has not the scripts that make MariaDB's system tables"
        raise UnavailableError(msg)
    return "\n".join(
        [
            # One statement a line, as --bootstrap requires; no account that logs in by socket.
            "create database if not exists mysql;",
            "use mysql;",
            "SET @auth_root_socket=NULL;",
            *(script.read_text(encoding="utf-8") for script in scripts if script),
        ]
    )
