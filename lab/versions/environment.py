"""A component's Python and packages: a separate virtual environment, kept in the cache folder."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from lab.running.progress import progress, say
from lab.servers import UnavailableError, debian
from lab.servers.cache import cached
from lab.servers.process import run
from lab.versions.client_library import DRIVERS, build_variables

_ROOT = Path(__file__).resolve().parents[2]

#: The packages that the essential tests need, and all drivers that pip installs from wheels.
PACKAGES = (
    *("SQLAlchemy[asyncio]", "tenacity", "alembic", "rich"),
    *("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "networkx"),
    *("psycopg[binary]", "psycopg2-binary", "pg8000", "asyncpg"),
    *("PyMySQL[rsa]", "aiomysql", "aiosqlite"),
)
#: Pythons to unpack if none is installed.
_UNPACKED = ("3.14",)
_OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"


def environment(python: str | None, requirements: tuple[str, ...]) -> Path:
    """Return the path of a Python that has these packages, and the newest versions of all others.

    :raises UnavailableError: this Python does not exist, or pip cannot install a package.
    """
    wanted = tuple(sorted({*_without(requirements), *requirements}))
    version = python or _OWN
    digest = hashlib.sha256("\n".join((*wanted, version)).encode()).hexdigest()[:10]
    home = cached(f"python-{version}-{digest}", lambda home: _make(version, wanted, home))
    return home / "bin" / "python"


def _without(requirements: tuple[str, ...]) -> tuple[str, ...]:
    """Return the packages that these requirements do not name."""
    named = {_name(one) for one in requirements}
    return tuple(one for one in PACKAGES if _name(one) not in named)


def _name(requirement: str) -> str:
    return requirement.partition("=")[0].partition("~")[0].partition("[")[0].lower()


def _make(version: str, requirements: tuple[str, ...], home: Path) -> None:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "python"
    if found := _installed(version):
        program.symlink_to(found)
        base = found.parent
    else:
        base = _wrap_unpacked(version, program)
    settings = f"home = {base}\ninclude-system-site-packages = false\n"
    (home / "pyvenv.cfg").write_text(settings, encoding="utf-8")
    (home / "lib" / f"python{version}" / "site-packages").mkdir(parents=True)
    say(
        f"Installing Python packages, from PyPI: some 60 MB, MIT, BSD, Apache-2.0 and LGPL: {requirements}"
    )
    variables = build_variables() if {*map(_name, requirements)} & DRIVERS else {}
    pip = ["env", *(f"{name}={value}" for name, value in variables.items())]
    pip += [sys.executable, "-m", "pip", "--python", str(program), "install", "--quiet"]
    if variables:
        pip += ["--no-cache-dir"]  # a wheel built for another folder would not find the library
    with progress(lambda: "pip installs"):
        run([*pip, "--disable-pip-version-check", *requirements], seconds=1800)


def _installed(version: str) -> Path | None:
    """Return the installed interpreter of this version."""
    if version == _OWN:
        return Path(sys.executable).resolve()
    reported = subprocess.run(
        [_ROOT / ".ci" / "pythons", version], capture_output=True, text=True, check=False
    )
    if reported.returncode:
        return None
    print_executable = ["-c", "import sys; print(sys.executable)"]
    return Path(run([reported.stdout.strip(), *print_executable]).strip())


def _wrap_unpacked(version: str, program: Path) -> Path:
    """Write a script that runs Debian's Python with Debian's C library; return its folder."""
    if version not in _UNPACKED:
        msg = f"there is no Python {version} here"
        raise UnavailableError(msg)
    root = debian.unpacked(f"python{version}-venv", "sid", licence="PSF-2.0")
    loader, *options, python = debian.command(root, f"usr/bin/python{version}")
    words = [loader, *options, "--argv0", '"$0"', python, '"$@"']
    program.write_text(f"#!/bin/sh\nexec {' '.join(words)}\n", encoding="utf-8")
    program.chmod(0o755)
    return root / "usr" / "bin"
