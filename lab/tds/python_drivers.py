"""pymssql, mssql-python and aioodbc, unpacked into the cache folder, never installed.

If a driver is installed, as CI installs pymssql, the tests use the installed driver.
"""

from __future__ import annotations

import importlib
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lab.servers.cache import cached
from lab.servers.downloads import Download
from lab.servers.model import UnavailableError
from lab.servers.wheels import unpack
from lab.tds import drivers

WHEELS = Path(__file__).with_name("python_drivers.txt")
DOWNLOADS = (
    Download("aioodbc 0.5.0", "PyPI", 19_449, "Apache-2.0"),
    Download("mssql-python 1.16.0", "PyPI", 3_819_125, "MIT"),
    Download("pymssql 2.4.6", "PyPI", 3_278_701, "LGPL-2.1"),
)


@cache
def python_driver(name: str) -> Any:
    """Return the module.

    :raises UnavailableError: it is not available here.
    """
    if name in {"aioodbc", "mssql_python"}:
        drivers.pyodbc()  # both need a manager's libraries in the process
    if name == "mssql_python":
        with _on_path(drivers.microsofts()):
            importlib.import_module("mssql_python_odbc")
    with _on_path(_folder(name)):
        try:
            return importlib.import_module(name)
        except ImportError as exc:
            raise UnavailableError(f"{name}: {exc}") from exc


def _folder(name: str) -> Path | None:
    """Return the folder of the module; None if it is installed."""
    if find_spec(name) is not None:
        return None
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise UnavailableError(f"{name}: of its wheels, those for Linux on x86_64 alone are used")
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return cached(f"drivers-of-mssql-2-{python}", _fill)


def _fill(folder: Path) -> None:
    unpack(WHEELS, DOWNLOADS, lambda _: True, folder)


@contextmanager
def _on_path(folder: Path | None) -> Iterator[None]:
    """Import from this folder too, inside the block."""
    if folder is None:
        yield
        return
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
