"""An engine on the TDS server for each driver that SQLAlchemy has a dialect for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from urllib.parse import quote_plus

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import NoSuchModuleError

from lab.servers.model import UnavailableError
from lab.tds import drivers
from lab.tds.python_drivers import python_driver

_ADDRESS = "u:p@127.0.0.1"


def over_odbc(words: Callable[[int], str], port: int, **options: Any) -> Engine:
    """Return an engine of pyodbc with this ODBC connection string."""
    url = f"mssql+pyodbc:///?odbc_connect={quote_plus(words(port))}"
    return create_engine(url, module=drivers.pyodbc(), **options)


def over_pymssql(port: int, **options: Any) -> Engine:
    url = f"mssql+pymssql://{_ADDRESS}:{port}/shop"
    return create_engine(url, module=python_driver("pymssql"), **options)


def over_mssql_python(port: int, **options: Any) -> Engine:
    """Return an engine of mssql-python.

    :raises UnavailableError: this SQLAlchemy has no dialect for it.
    """
    module = python_driver("mssql_python")
    url = f"mssql+mssqlpython://{_ADDRESS}:{port}/shop?Encrypt=no"
    try:
        return create_engine(url, module=module, **options)
    except NoSuchModuleError as exc:
        raise UnavailableError("SQLAlchemy 2.0 has no dialect for mssql-python") from exc


ENGINES: Mapping[str, Callable[..., Engine]] = {
    "freetds": lambda port, **options: over_odbc(drivers.freetds, port, **options),
    "odbc18": lambda port, **options: over_odbc(drivers.odbc18, port, **options),
    "pymssql": over_pymssql,
    "mssqlpython": over_mssql_python,
}


@cache  # finding out that it is not available takes a while
def why_no_engine(name: str) -> str | None:
    """Return why no engine can use this driver; None if one can."""
    try:
        ENGINES[name](0).dispose()
    except UnavailableError as exc:
        return str(exc)
    return None
