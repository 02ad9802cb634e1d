"""The components, in the order of the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from lab.servers import mysqld_versions, postgresql_versions
from lab.versions.component import Component
from lab.versions.essentials import ASYNCIO, ESSENTIALS, OTHER_DRIVER

NEWEST: Mapping[str, str] = {
    "postgresql": "postgresql-18",
    "mysql": "mysql-9.7",
    "mariadb": "mariadb-11.8",
}
"""The servers that the drivers are tested on."""

PRODUCTS: Mapping[str, str] = {
    "postgresql": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
    "sqlite": "SQLite",
}


def _servers() -> Iterator[Component]:
    for name in (*postgresql_versions.STARTS, *mysqld_versions.STARTS):
        yield Component(name, PRODUCTS[name.partition("-")[0]], name)


def _driver(
    package: str,
    database: str,
    oldest: str,
    *,
    driver: str | None = None,
    async_driver: str | None = None,
    extra: str = "",
    oldest_python: str | None = None,
) -> Iterator[Component]:
    """Yield the oldest and the newest version of a driver.

    :param package: its name on PyPI.
    :param extra: as in ``[binary]``.
    :param oldest_python: the Python for the oldest version, if it has no wheels for newer ones.
    """
    tests = ASYNCIO if async_driver else OTHER_DRIVER if driver else ESSENTIALS
    for age, requirement in (("oldest", f"=={oldest}"), ("newest", "")):
        yield Component(
            f"{package}-{age}",
            package,
            NEWEST.get(database),
            python=oldest_python if age == "oldest" else None,
            requirements=(f"{package}{extra}{requirement}",),
            package=package,
            driver=driver,
            async_driver=async_driver,
            tests=tests,
        )


def _drivers() -> Iterator[Component]:
    yield from _driver("psycopg", "postgresql", "3.1", extra="[binary]", oldest_python="3.10")
    for name, requirement in (("psycopg-python", "psycopg"), ("psycopg-c", "psycopg[c]")):
        yield Component(
            name, "psycopg", NEWEST["postgresql"], requirements=(requirement,), package="psycopg"
        )
    yield from _driver("psycopg2-binary", "postgresql", "2.9.10", driver="psycopg2")
    yield from _driver("pg8000", "postgresql", "1.31", driver="pg8000")
    yield from _driver("asyncpg", "postgresql", "0.29", async_driver="asyncpg")
    yield from _driver("PyMySQL", "mysql", "1.1", extra="[rsa]")
    yield from _driver("mysqlclient", "mysql", "2.2.0", driver="mysqldb")
    yield from _driver("mysql-connector-python", "mysql", "8.4.0", driver="mysqlconnector")
    yield from _driver("mariadb", "mariadb", "1.1.10", driver="mariadbconnector")
    yield from _driver("aiomysql", "mysql", "0.2", async_driver="aiomysql")
    yield from _driver("asyncmy", "mysql", "0.2.9", async_driver="asyncmy")
    yield from _driver("aiosqlite", "sqlite", "0.19", async_driver="aiosqlite")


#: The oldest supported SQLAlchemy, or a newer one if a driver needs it: SQLAlchemy supports MySQL
#: Connector/Python again since 2.0.39, and its isolation level AUTOCOMMIT since 2.0.40.
_OLDEST, _OLDEST_WITH = "2.0.0", {"mysql-connector-python": "2.0.40"}


def _crossed() -> Iterator[Component]:
    """Yield each driver with the oldest SQLAlchemy; the newest driver gets the newest."""
    for one in _drivers():
        if one.name.endswith("-newest"):
            name = one.name.removesuffix("-newest")
            oldest = f"SQLAlchemy[asyncio]=={_OLDEST_WITH.get(name, _OLDEST)}"
            yield replace(
                one,
                name=f"{name}-on-sqlalchemy-oldest",
                python="3.10",
                requirements=(*one.requirements, oldest),
            )


def _sqlalchemy() -> Iterator[Component]:
    for name, requirement, python in (
        ("sqlalchemy-oldest", f"=={_OLDEST}", "3.10"),
        ("sqlalchemy-2.0", "~=2.0.0", None),
        ("sqlalchemy-2.1", "~=2.1.0", None),
    ):
        yield Component(
            name,
            "SQLAlchemy",
            NEWEST["postgresql"],
            python=python,
            requirements=(f"SQLAlchemy[asyncio]{requirement}",),
            package="SQLAlchemy",
        )


def _sqlite() -> Iterator[Component]:
    # Python 3.11 and later need a newer library than Debian 11 has.
    yield Component("sqlite-oldest", "SQLite", None, python="3.10", sqlite="bullseye")
    yield Component("sqlite", "SQLite", None)
    yield Component("sqlite-newest", "SQLite", None, python="3.14")


def _pythons() -> Iterator[Component]:
    for version in ("3.10", "3.11", "3.12", "3.13", "3.14"):
        yield Component(f"python-{version}", "Python", NEWEST["postgresql"], python=version)


COMPONENTS: Mapping[str, Component] = {
    one.name: one
    for group in (_servers, _sqlite, _drivers, _crossed, _sqlalchemy, _pythons)
    for one in group()
}
