"""The ways to a server for each database, all tried at the same time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from lab.servers import (
    docker,
    firebird,
    mariadb,
    mssql,
    mysql,
    mysqld_versions,
    postgresql_versions,
)
from lab.servers.model import (
    NAMES,
    EndedError,
    Missing,
    Server,
    UnavailableError,
    url_variable,
)
from lab.servers.probe import version_at

#: Servers that this package starts itself, without Docker.
LOCAL: Mapping[str, Callable[[], Server]] = {
    "postgresql": postgresql_versions.start_by_flavour,
    "mysql": mysql.start,
    "mariadb": mariadb.start,
    "firebird": firebird.start,  # for an example; not a column of the matrix
    **postgresql_versions.STARTS,
    **mysqld_versions.STARTS,
}

_NOT_UNPACKABLE = "it cannot be unpacked and started here"


def find_servers(names: Iterable[str]) -> dict[str, Server | Missing]:
    """Provide a server for each of these databases, or the reason for its absence.

    :param names: from :data:`NAMES`, or firebird; the answer keeps their order.
    """
    wanted = list(names)
    if unknown := set(wanted) - {*NAMES, *LOCAL}:
        msg = f"no such server: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}"
        raise ValueError(msg)
    with ThreadPoolExecutor(max_workers=len(NAMES)) as pool:
        return dict(zip(wanted, pool.map(_find, wanted), strict=True))


def start_private(name: str) -> Server:
    """Start a server that no other process uses and that a test may kill.

    :raises UnavailableError: the server cannot be unpacked and started here.
    """
    return _start_local(name)


def why_unobtainable(name: str) -> str:
    """Return why no way leads to a server of this database here; "" if one might."""
    if os.environ.get(url_variable(name)) or _is_unpackable(name):
        return ""
    why = docker.why_not(name)
    return f"{url_variable(name)} is not set; {why}; {_NOT_UNPACKABLE}" if why else ""


def _is_unpackable(name: str) -> bool:
    return name in LOCAL and sys.platform != "win32"


def _find(name: str) -> Server | Missing:
    # A URL that does not work must not be silently replaced by another server.
    if url := os.environ.get(url_variable(name)):
        try:
            version = version_at(name, url)
            if name == "mssql":
                mssql.prepare(url)
            return Server(name, url, version, url_variable(name))
        except UnavailableError as exc:
            return Missing(name, f"{url_variable(name)}: {exc}")
    reasons = [f"{url_variable(name)} is not set"]
    for way in (docker.start, _start_local):
        found = _attempt(way, name)
        if isinstance(found, Server):
            return found
        reasons.append(found)
    return Missing(name, "; ".join(reasons))


def _attempt(way: Callable[[str], Server], name: str) -> Server | str:
    try:
        return way(name)
    except UnavailableError as exc:
        return str(exc)


def _start_local(name: str, tries: int = 3) -> Server:
    if not _is_unpackable(name):
        raise UnavailableError(_NOT_UNPACKABLE)
    try:
        return LOCAL[name]()
    except EndedError:  # the port is taken, or too many such servers run
        if tries == 1:
            raise
        return _start_local(name, tries - 1)
