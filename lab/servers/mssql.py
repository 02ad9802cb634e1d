"""Prepares a SQL Server before its first test: runs the DBA's migration, and disables ODBC's pool."""

from __future__ import annotations

import importlib
import io
from argparse import Namespace
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy.exc import SQLAlchemyError

from lab.servers.model import UnavailableError

_MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"


def prepare(url: str) -> None:
    """Run the migration, as ``alembic -c migrations/alembic.ini -x url=... upgrade head`` does.

    :raises UnavailableError: the migration failed, for example without ALTER on the database.
    """
    disable_odbc_pooling()
    config = Config(cmd_opts=Namespace(x=[f"url={url}"]), stdout=io.StringIO())
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    try:
        command.upgrade(config, "head")
    except (SQLAlchemyError, CommandError) as exc:
        raise UnavailableError(f"the migration has failed: {exc}") from exc


def disable_odbc_pooling() -> None:
    """Stop ODBC from pooling connections in this process; call it before the first connection."""
    pyodbc: Any = importlib.import_module("pyodbc")
    pyodbc.pooling = False
