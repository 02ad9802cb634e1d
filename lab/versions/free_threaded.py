"""``make versions ARGS=python-free-threaded``: the eight-thread stress and the unit tests, without a GIL.

The interpreter is ``SA_DOCLOCK_TEST_FREE_THREADED``, or ``python3.14t`` or ``python3.13t`` on PATH.
Otherwise it is built from Debian's sources in four minutes, which needs a C compiler and the headers of
OpenSSL, SQLite and libffi.  Extension modules that enable the GIL again are left out, among them greenlet
and so asyncio; a test that finds the GIL enabled fails.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lab.running.progress import progress, say
from lab.servers import UnavailableError, debian, start_private, url_variable
from lab.servers.cache import cached
from lab.servers.process import run
from lab.versions.result import Result
from lab.versions.run import counted

NAME = "python-free-threaded"
VARIABLE = "SA_DOCLOCK_TEST_FREE_THREADED"

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAMS = ("python3.14t", "python3.13t")
_SUITE, _SOURCE = "trixie", "python3.13"
#: Not wanted, and slow to build or dependent on more headers.
_LEFT_OUT = "_tkinter _curses _curses_panel _dbm _gdbm nis readline _lzma"
#: None of them enables the GIL.  psycopg is the pure-Python version.
_PACKAGES = (
    *("SQLAlchemy", "tenacity", "alembic", "typer", "rich", "opentelemetry-sdk"),
    *("psycopg", "pg8000", "PyMySQL"),
    *("pytest", "pytest-timeout", "pytest-xdist", "networkx", "hypothesis<6.140"),
)
_STRESS = "tests/reliability/stress/test_threads.py"
_UNIT = (
    "tests/unit",
    "audit/tests",
    "--ignore=audit/tests/seeded",  # needs servers
    # These need greenlet for asyncio, or test sources, types and extras, which threads do not affect.
    *(
        f"--ignore=tests/unit/test_{name}.py"
        for name in (
            *("hover", "import", "linear", "lock_timeout", "readability"),
            *("session_bases", "strange_keys", "typed"),
        )
    ),
    *("-k", "not asynchronous and not task", "-m", "not exhaustive"),
    # These leave engines in memory, which a later garbage collection closes.
    *("-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning"),
)


def interpreter() -> Path:
    """Return a free-threaded Python; build one if it is missing.

    :raises UnavailableError: the build is not possible here.
    """
    named = os.environ.get(VARIABLE) or next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if named is not None:
        return Path(named)
    home = cached(f"{_SOURCE}t-{_SUITE}", _build)
    return home / "install" / "bin" / f"{_SOURCE}t"


def _build(home: Path) -> None:
    """Build it, and keep only the installation; it finds its library wherever the folder is."""
    if not shutil.which("cc"):
        msg = "a free-threaded Python is built by a C compiler, and there is none"
        raise UnavailableError(msg)
    source = debian.source(_SOURCE, _SUITE, licence="PSF-2.0")
    with tempfile.TemporaryDirectory() as scratch:
        run(["cp", "--recursive", f"{source}/.", scratch])
        setup = Path(scratch, "Modules", "Setup.local")
        setup.write_text("*disabled*\n" + "\n".join(_LEFT_OUT.split()) + "\n", encoding="utf-8")
        configure = ["./configure", "--quiet", f"--prefix={home / 'install'}", "OPT=-DNDEBUG -O1"]
        configure += ["--disable-gil", "--disable-test-modules", "--without-doc-strings"]
        jobs = f"--jobs={os.cpu_count() or 1}"
        with progress(lambda: "Python is being built"):
            for step in (configure, ["make", "--silent", jobs], ["make", "--silent", "install"]):
                run(["env", f"--chdir={scratch}", *step], seconds=3600)


def _environment(python: Path) -> Path:
    """Return the Python of a separate environment that has the packages."""
    version = run([str(python), "-c", "import sys; print(sys.version)"]).split()[0]
    home = cached(f"free-threaded-{version}", lambda home: _install(python, home))
    return home / "bin" / "python"


def _install(python: Path, home: Path) -> None:
    run([str(python), "-m", "venv", "--without-pip", str(home)])
    say(f"Installing Python packages, from PyPI: some 20 MB, MIT, BSD and LGPL: {_PACKAGES}")
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install"]
    with progress(lambda: "pip installs"):
        run([*pip, "--quiet", "--only-binary=:all:", *_PACKAGES], seconds=1800)


def _install_checkout(python: Path) -> None:
    """Make both distributions and the pytest plugin of this checkout importable in the environment."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    run([*pip, "--editable", str(_ROOT), "--editable", str(_ROOT / "audit")], seconds=1800)


def run_all() -> Result:
    """Run the stress on SQLite and PostgreSQL, and the unit tests.

    :raises UnavailableError: the Python or the server is not available here.
    """
    python = _environment(interpreter())
    _install_checkout(python)
    version = run([str(python), "-c", "import platform; print(platform.python_version())"]).strip()
    with progress(lambda: "postgresql is being started"):
        server = start_private("postgresql")
    try:
        variables = {**os.environ, url_variable("postgresql"): server.url}
        passed, skipped, failed = _run_tests(python, variables)
    finally:
        server.stop()
    with_what = f"{server.version}, psycopg in pure Python, the GIL off"
    today = dt.datetime.now(dt.timezone.utc).date().isoformat()
    return Result(
        *(NAME, "Python", f"{version} free-threaded", with_what, today),
        *(passed, failed, skipped),
    )


def _run_tests(python: Path, variables: dict[str, str]) -> tuple[int, dict[str, int], int]:
    with tempfile.TemporaryDirectory() as scratch:
        report, log = Path(scratch, "report.xml"), Path(scratch, "log")
        command = [str(python), "-m", "pytest", "-q", "--tb=short", f"--junitxml={report}"]
        command += ["--numprocesses=2", "-p", "no:cacheprovider", "-p", "lab.versions.no_gil"]
        command += ["--databases=sqlite,postgresql", _STRESS, *_UNIT]
        with progress(lambda: "without a GIL"), log.open("w") as output:
            subprocess.run(
                command, cwd=_ROOT, env=variables, stdout=output, stderr=output, check=False
            )
        passed, skipped, failed = counted(report, log)
        if failed:
            say(log.read_text(encoding="utf-8"))
        return passed, skipped, failed
