"""Component: one version of a server, driver, SQLAlchemy, SQLite or Python, and its test environment."""

from __future__ import annotations

from dataclasses import dataclass

from lab.versions.essentials import ESSENTIALS


@dataclass(frozen=True)
class Component:
    """The subject of a row of docs/versions-tested.md.

    :ivar name: also names its file in ``results``.
    :ivar product: PostgreSQL, psycopg, Python and so on.
    :ivar server: a server from lab/servers; None for SQLite.
    :ivar python: a version; None for the Python of this run.
    :ivar requirements: packages for pip, in addition to or instead of the newest ones.
    :ivar package: the package whose version is the component's; None for the server, SQLite or Python.
    :ivar driver: the driver in the URL; None for SQLAlchemy's default.
    :ivar async_driver: replaces the drivers of tests/integration/asyncio.
    :ivar sqlite: the Debian suite that provides the SQLite library.
    :ivar tests: files and folders.
    """

    name: str
    product: str
    server: str | None
    python: str | None = None
    requirements: tuple[str, ...] = ()
    package: str | None = None
    driver: str | None = None
    async_driver: str | None = None
    sqlite: str | None = None
    tests: tuple[str, ...] = ESSENTIALS

    @property
    def database(self) -> str:
        """The column of the matrix."""
        return "sqlite" if self.server is None else self.server.partition("-")[0]
