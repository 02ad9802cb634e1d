"""Runs Python in a folder of its own, as a reader of the pages does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from tests.docs.pages import ROOT
from tests.support.databases import Database
from tests.support.own_code import PACKAGE

_EMPTY: Final = "doclock_sample"


def python_environment() -> dict[str, str]:
    """Return the environment in which Python finds the sa_doclock that the tests have imported."""
    if PACKAGE.parent != ROOT:
        return {**os.environ}
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": paths}


@contextmanager
def empty_database(database: Database) -> Iterator[sa.URL]:
    """Make a database beside that of the test, with nothing in it; give its URL, and drop it.

    The database of the test may have tables that other tests have kept.
    """
    url = sa.make_url(database.url)
    if database.name == "sqlite":  # a file that the test has for itself
        yield url
        return
    with database.observer().connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {_EMPTY}")
        connection.exec_driver_sql(f"CREATE DATABASE {_EMPTY}")
        yield url.set(database=_EMPTY)
        force = " WITH (FORCE)" if database.name == "postgresql" else ""  # of a process just killed
        connection.exec_driver_sql(f"DROP DATABASE {_EMPTY}{force}")


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in the folder, with the sa_doclock that the tests have imported."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
