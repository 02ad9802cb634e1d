"""Runs a component: starts its server and environment, runs pytest, and reads the result."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import sqlalchemy as sa

from lab.running.progress import progress, say
from lab.servers import Server, UnavailableError, debian, start_private, url_variable
from lab.versions import client_library
from lab.versions.component import Component
from lab.versions.environment import environment
from lab.versions.result import Result

_ROOT = Path(__file__).resolve().parents[2]
_ASK_VERSIONS = """
import json, platform, sqlite3, sys
from importlib.metadata import PackageNotFoundError, version
found = {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""
#: The driver of each database, if the component names none.
_DRIVERS = {"postgresql": "psycopg", "mysql": "PyMySQL", "mariadb": "PyMySQL"}
_OPTIONS = ("-q", "--tb=short", "-p", "no:cacheprovider", "-p", "lab.versions.older_sqlalchemy")
_WITH_RESULTS = (0, 1)  # pytest's exit statuses if all tests passed, or some failed
#: Warnings from drivers and servers that are older than the Python.
_NO_ERRORS = ("-W", "ignore::DeprecationWarning", "-W", "ignore::ResourceWarning")


def run_component(component: Component) -> Result:
    """Run the essential tests on a component.

    :raises UnavailableError: the server, the Python or a package is not available here.
    """
    python = environment(component.python, component.requirements)
    with _server(component) as server, tempfile.TemporaryDirectory() as scratch:
        variables = {**os.environ, **_variables(component, server)}
        report, log = Path(scratch, "report.xml"), Path(scratch, "log")
        command = [str(python), "-m", "pytest", *_OPTIONS, *_NO_ERRORS, f"--junitxml={report}"]
        command += [f"--databases={component.database}", *component.tests]
        with progress(lambda: f"{component.name}: {_last_line(log)}"), log.open("w") as output:
            status = subprocess.run(
                command, cwd=_ROOT, env=variables, stdout=output, stderr=output, check=False
            ).returncode
        if status not in _WITH_RESULTS:
            msg = f"pytest ended with status {status}: {log.read_text(encoding='utf-8')[-2000:]}"
            raise UnavailableError(msg)
        passed, skipped, failed = counted(report, log)
        if failed:
            say(log.read_text(encoding="utf-8"))
        versions = _versions(component, python, server, variables)
    return Result(
        component.name,
        component.product,
        versions.pop(component.product),
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        dt.datetime.now(dt.timezone.utc).date().isoformat(),
        passed,
        failed,
        skipped,
    )


@contextmanager
def _server(component: Component) -> Iterator[Server | None]:
    if component.server is None:
        yield None
        return
    with progress(lambda: f"{component.server} is being started"):
        server = start_private(component.server)
    try:
        yield server
    finally:
        server.stop()


def _variables(component: Component, server: Server | None) -> dict[str, str]:
    found = {"SA_DOCLOCK_TEST_REQUIRE": component.database}
    if server is not None:
        url = sa.make_url(server.url)
        if component.driver is not None:  # the parameters fit only the default driver
            name = f"{url.get_backend_name()}+{component.driver}"
            url = url.set(drivername=name, query={})
        found[url_variable(component.database)] = url.render_as_string(hide_password=False)
    if component.async_driver is not None:
        found["SA_DOCLOCK_TEST_ASYNC_DRIVER"] = component.async_driver
    if component.package in client_library.DRIVERS:
        found |= client_library.run_variables()
    if component.sqlite is not None:
        root = debian.unpacked_alone(
            "libsqlite3-0", licence="public domain", suite=component.sqlite
        )
        (library,) = root.glob("usr/lib/*/libsqlite3.so.0")
        found["LD_LIBRARY_PATH"] = str(library.parent)
    return found


def _versions(
    component: Component, python: Path, server: Server | None, variables: dict[str, str]
) -> dict[str, str]:
    """Return the versions of the component and of its test environment."""
    driver = component.package or _DRIVERS.get(component.database, "")
    names = list(dict.fromkeys(["SQLAlchemy", driver or "SQLAlchemy"]))
    reported = subprocess.run(
        [str(python), "-c", _ASK_VERSIONS, *names],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(reported.stdout)
    if server is not None:
        del found["SQLite"]
        product, _, version = server.version.rpartition(" ")
        found = {product: version, **found}
    return found


def counted(report: Path, log: Path) -> tuple[int, dict[str, int], int]:
    """Return the number of passed tests, the skipped tests by reason, and the number of failed tests."""
    if not report.exists():
        raise RuntimeError(log.read_text(encoding="utf-8"))
    passed, failed, skipped = 0, 0, Counter[str]()
    for case in ET.parse(report).iter("testcase"):
        reason = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif reason is not None:
            skipped[reason.get("message", "")] += 1
        else:
            passed += 1
    return passed, dict(sorted(skipped.items())), failed


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1][-80:] if lines else "pytest begins"
