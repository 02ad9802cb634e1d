"""The available databases: always SQLite, and each server whose URL is given."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.lab.figures import Absent
from benchmarks.lab.proxy import Proxy

SERVERS = ("postgresql", "mysql", "mariadb")
NAMES = ("sqlite", *SERVERS)
_PRODUCTS = {
    "sqlite": "SQLite",
    "postgresql": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
}
_VERSION = {
    "sqlite": "SELECT sqlite_version()",
    "postgresql": "SHOW server_version",
    "mysql": "SELECT version()",
    "mariadb": "SELECT version()",
}
_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306}

# A TCP proxy can read only plain text.
_READABLE = {
    "postgresql": {"sslmode": "disable", "gssencmode": "disable"},
    "mysql": {"ssl_disabled": "true"},
    "mariadb": {"ssl_disabled": "true"},
}


class Place:
    """One database."""

    def __init__(self, name: str, url: sa.URL) -> None:
        self.name = name
        self.url = url
        self._proxy: Proxy | None = None
        self._engines: list[sa.Engine] = []

    def engine(self, url: sa.URL | None = None, **options: Any) -> sa.Engine:
        """Return an engine that is disposed at the end.

        MySQL and MariaDB use READ COMMITTED, as docs/mysql.md advises: then a lock needs no switch of the
        isolation level, neither here nor in hand-written code.
        """
        if self.name in ("mysql", "mariadb"):
            options.setdefault("isolation_level", "READ COMMITTED")
        engine = sa.create_engine(url or self.url, **options)
        self._engines.append(engine)
        return engine

    @property
    def proxy(self) -> Proxy:
        """:raises Absent: an SQLite file has no wire."""
        if self.name not in _PORTS:
            raise Absent("SQLite has no wire")
        if self._proxy is None:
            port = self.url.port or _PORTS[self.name]
            self._proxy = Proxy(self.url.host or "127.0.0.1", port)
        return self._proxy

    @property
    def far_url(self) -> sa.URL:
        """The URL that leads through the proxy."""
        through = self.url.set(host="127.0.0.1", port=self.proxy.port)
        return through.update_query_dict(_READABLE[self.name])

    @property
    def version(self) -> str:
        with self.engine().connect() as connection:
            number = str(connection.exec_driver_sql(_VERSION[self.name]).scalar())
        return f"{_PRODUCTS[self.name]} {re.split('[^0-9.]', number)[0]}"

    def close(self) -> None:
        for engine in self._engines:
            engine.dispose()
        if self._proxy is not None:
            self._proxy.close()


def place(name: str, given: dict[str, str], folder: Path) -> Place:
    """:raises Absent: the server is not available."""
    variable = f"SA_DOCLOCK_TEST_{name.upper()}_URL"
    found = given.get(name) or os.environ.get(variable)
    if found is None and name == "sqlite":
        found = f"sqlite:///{folder / 'benchmark.db'}"
    if found is None:
        raise Absent(f"no {name} server: {variable} is not set")
    return Place(name, sa.make_url(found))
