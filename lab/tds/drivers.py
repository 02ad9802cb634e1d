"""Two ODBC drivers and their manager, unpacked into the cache folder, never installed.

FreeTDS and unixODBC come from Debian; Microsoft's driver comes in its own wheel. pyodbc's wheel has
no manager: it uses the manager already loaded in the process.
"""

from __future__ import annotations

import ctypes
import importlib
import platform
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lab.servers.cache import cached
from lab.servers.debian import unpacked_alone
from lab.servers.downloads import Download, refuse_proprietary
from lab.servers.model import UnavailableError
from lab.servers.wheels import unpack

WHEELS = Path(__file__).with_name("wheels.txt")
DOWNLOAD = Download(
    "Microsoft's ODBC driver (mssql-python-odbc 18.6.2.2)", "PyPI", 2_926_924, "proprietary"
)
_LIBRARY = "mssql_python_odbc/libs/linux/debian_ubuntu/x86_64/lib/libmsodbcsql-18.6.so.2.1"
_NEEDED = ("mssql_python_odbc/libs/linux/debian_ubuntu/x86_64/", "mssql_python_odbc/__init__.py")
_FREETDS = "usr/lib/*/odbc/libtdsodbc.so"
_MANAGER = ("libltdl.so.7", "libodbcinst.so.2", "libodbc.so.2")


def freetds(port: int) -> str:
    """Return the connection string for FreeTDS."""
    pyodbc()
    installed = sorted(Path("/").glob(_FREETDS))
    library = (installed or sorted(_debian().glob(_FREETDS)))[0]
    return f"DRIVER={_loaded(library)};SERVER=127.0.0.1;PORT={port};TDS_Version=7.4;UID=u;PWD=p"


def odbc18(port: int) -> str:
    """Return the connection string for Microsoft's driver."""
    folder = microsofts()
    pyodbc()  # the driver needs a library of the manager
    library = _loaded(folder / _LIBRARY)
    return f"DRIVER={library};SERVER=127.0.0.1,{port};Encrypt=no;UID=u;PWD=p"


def microsofts() -> Path:
    """Return the folder with Microsoft's driver, in a package that mssql-python imports."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        msg = "of the wheel mssql-python-odbc, the one for Linux on x86_64 alone is used"
        raise UnavailableError(msg)
    refuse_proprietary("Microsoft's ODBC driver")
    return cached("msodbcsql-18.6.2.2", _fill)


DRIVERS: Mapping[str, Callable[[int], str]] = {"freetds": freetds, "odbc18": odbc18}


@cache  # finding out that it is not available takes a while
def why_not(name: str) -> str | None:
    """Return why this driver is not available; None if it is."""
    try:
        DRIVERS[name](0)
    except UnavailableError as exc:
        return str(exc)
    return None


@cache
def pyodbc() -> Any:
    """Return the module, with a manager loaded for it.

    :raises UnavailableError: one of the two is not available.
    """
    if not _loads("libodbc.so.2"):
        (folder,) = {found.parent for found in _debian().glob("usr/lib/*/libodbc.so.2")}
        for name in _MANAGER:
            _loaded(folder / name)
    try:
        module: Any = importlib.import_module("pyodbc")
    except ImportError as exc:
        msg = f"pyodbc: {exc}"
        raise UnavailableError(msg) from exc
    module.pooling = False
    return module


def _debian() -> Path:
    return unpacked_alone("tdsodbc", "libodbc2", "libodbcinst2", "libltdl7", licence="LGPL-2.1")


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _loaded(library: Path) -> Path:
    try:
        ctypes.CDLL(str(library))
    except OSError as exc:
        raise UnavailableError(str(exc)) from exc
    return library


def _fill(folder: Path) -> None:
    unpack(WHEELS, (DOWNLOAD,), lambda name: name.startswith(_NEEDED), folder)
