"""Checks whether a server answers, and which product and version it is."""

from __future__ import annotations

import time
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from lab.servers.model import UnavailableError

_PRODUCTS = {
    "postgresql": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
    "mssql": "SQL Server",
}


def version_at(name: str, url: str) -> str:
    """Return the server's own name and version, such as ``PostgreSQL 18.4``.

    :raises UnavailableError: it does not answer, or is a product other than ``name``.
    """
    try:
        engine = sa.create_engine(url, poolclass=NullPool)
        with engine.connect() as connection:
            dialect = connection.dialect
    except (sa.exc.SQLAlchemyError, ImportError) as exc:
        raise UnavailableError(_last_line(exc)) from exc
    found = "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name
    version = ".".join(map(str, (dialect.server_version_info or ())[:3]))
    reported = f"{_PRODUCTS.get(found, found)} {version}"
    if found != name:
        msg = f"wanted {_PRODUCTS[name]}, and {reported} answered"
        raise UnavailableError(msg)
    return reported


def wait_until_ready(
    name: str, url: str, still_starting: Callable[[], None], *, seconds: float = 60
) -> str:
    """Poll a starting server until it answers; return its version.

    :param still_starting: called between two attempts; raises if the server has given up.
    """
    deadline = time.monotonic() + seconds
    while True:
        still_starting()
        try:
            return version_at(name, url)
        except UnavailableError as exc:
            if time.monotonic() > deadline:
                msg = f"no answer within {seconds:g} s: {exc}"
                raise UnavailableError(msg) from exc
        time.sleep(0.05)


def _last_line(exc: BaseException) -> str:
    cause = getattr(exc, "orig", None) or exc
    return (str(cause).strip().splitlines() or [type(cause).__name__])[-1]
