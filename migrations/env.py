"""The environment of ``alembic -c migrations/alembic.ini``: one database, no models."""

from __future__ import annotations

import os
from logging.config import fileConfig

from alembic import context
from alembic.util import CommandError
from sqlalchemy import URL, create_engine, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

# Not alembic_version: the application's own migrations use that table in the same database.
VERSION_TABLE = "sa_doclock_version"


def database_url() -> URL:
    """Return ``-x url=...``, else SA_DOCLOCK_URL, which keeps a password out of ``ps``.

    :raises alembic.util.CommandError: neither is given, or it is not a URL.
    """
    arguments = context.get_x_argument(as_dictionary=True)
    url = arguments.get("url") or os.environ.get("SA_DOCLOCK_URL") or ""
    try:
        return make_url(url)
    except ArgumentError as exc:
        raise CommandError(
            "which database? alembic -c migrations/alembic.ini"
            " -x url='mssql+pyodbc://user:password@host/database?driver=...' upgrade head,"
            f" or set SA_DOCLOCK_URL ({exc})"
        ) from exc


def run_offline() -> None:
    """Write the script to standard output; no driver is needed."""
    context.configure(
        url=database_url(),
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},
        version_table=VERSION_TABLE,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    """Run the migrations on a separate connection."""
    engine = create_engine(database_url(), poolclass=NullPool)
    with engine.connect() as connection:
        context.configure(
            connection=connection,
            version_table=VERSION_TABLE,
            # A revision that needs autocommit commits all earlier changes: keep those few.
            transaction_per_migration=True,
        )
        with context.begin_transaction():
            context.run_migrations()


if context.config.config_file_name is not None:
    fileConfig(context.config.config_file_name, disable_existing_loggers=False)

if context.is_offline_mode():
    run_offline()
else:
    run_online()
