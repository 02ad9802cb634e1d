"""``python -m lab.compat``: run the tests of others on our sessions, and compare.

A test that fails is run again, on our sessions and on the stock ones.  Where it fails on ours and
passes on those, it is a difference, and must be in differences.py.  A row there whose test has passed
is reported, and is no failure: some of these tests depend on what ran before them.

The second runs are made without the garbage collector.  Some of SQLAlchemy's tests drop a session
that holds the write lock of SQLite's file, and pass only where the collector comes within 5 seconds,
with any session.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import sqlalchemy as sa

import sa_doclock
from lab.compat.differences import DIFFERENCES
from lab.servers import Server, find_servers
from lab.servers.__main__ import stop_all
from lab.servers.cache import cached
from lab.servers.downloads import Download, downloading

_HERE = Path(__file__).parent
_SESSIONS = tuple(
    f"test/{name}.py"
    for name in (
        *("orm/test_session", "orm/test_transaction", "orm/test_events", "orm/test_scoping"),
        *("orm/test_versioning", "orm/test_lockmode", "orm/test_expire", "orm/test_bind"),
        *("ext/asyncio/test_session", "ext/asyncio/test_scoping"),
    )
)


@dataclass(frozen=True)
class Suite:
    """The tests of one release.

    :ivar sources: the folder of its package in the unpacked folder.
    :ivar tests: all of its tests that create sessions.
    :ivar fast: the tests that are about sessions.
    :ivar python: the oldest version that it supports.
    :ivar options: options for its pytest.
    :ivar runs_on: the suite of the SQLAlchemy version that it needs; None for the installed version.
    :ivar drivers: drivers of the servers that it runs on, by server name; empty for SQLite.
    :ivar size: bytes of its sources, packed.
    """

    requirement: str
    package: str
    sources: str
    tests: tuple[str, ...]
    fast: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 10)
    runs_on: str | None = None
    options: tuple[str, ...] = ()
    drivers: tuple[tuple[str, str], ...] = ()
    size: int = 0
    licence: str = "MIT"

    def unpack(self) -> Path:
        """Return the folder of the release; pip downloads it if it is missing."""
        return next(cached(f"compat-{self.requirement}", self._download).iterdir())

    def _download(self, folder: Path) -> None:
        name = self.requirement.partition("==")[0]
        download = Download(f"the sources of {self.requirement}", "PyPI", self.size, self.licence)
        with (
            tempfile.TemporaryDirectory() as scratch,
            downloading(download, folder=Path(scratch)),
        ):
            subprocess.run(
                [
                    *("env", f"TMPDIR={scratch}"),  # pip downloads into it first
                    *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                    *("--no-binary", name, "--dest", scratch, self.requirement),
                ],
                check=True,
            )
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")


_SQLALCHEMY = (
    "sqlalchemy",
    "lib",
    ("test/orm", "test/ext/asyncio"),
    (*_SESSIONS, "test/orm/dml"),
)
# Files: a database in memory gives all sessions one connection, so no lock is possible.
_FILES = ("--db", "sqlite_file", "--db", "aiosqlite_file")
SUITES = {
    "sqlalchemy-2.1": Suite(
        "SQLAlchemy==2.1.9", *_SQLALCHEMY, python=(3, 11), options=_FILES, size=10_657_094
    ),
    "sqlalchemy-2.0": Suite("SQLAlchemy==2.0.58", *_SQLALCHEMY, options=_FILES, size=10_031_998),
    "cancellation": Suite(
        *("SQLAlchemy==2.1.9", "sqlalchemy", "lib", ("test/ext/asyncio/test_cancellation.py",)),
        python=(3, 11),
        drivers=(
            *(("postgresql", "asyncpg"), ("postgresql", "psycopg_async")),
            *(("mysql", "aiomysql"), ("mariadb", "aiomysql")),
        ),
        size=10_657_094,
    ),
    # Its sources have no pytest settings; pytest would search the folders above for some.
    "sqlmodel": Suite(
        *("sqlmodel==0.0.50", "sqlmodel", ".", ("tests",)),
        python=(3, 11),
        options=("-c", os.devnull),
        size=99_272,
    ),
    # A third of its own tests fail with SQLAlchemy 2.1, even on its own sessions.
    "flask-sqlalchemy": Suite(
        *("flask-sqlalchemy==3.1.1", "flask_sqlalchemy", "src", ("tests",)),
        runs_on="sqlalchemy-2.0",
        size=81_899,
        licence="BSD-3-Clause",
    ),
}


@dataclass(frozen=True)
class Results:
    """The ids of the tests of a run.  A module whose import fails counts as failed, by its path."""

    failed: frozenset[str] = frozenset()
    passed: frozenset[str] = frozenset()
    skipped: frozenset[str] = frozenset()

    @property
    def ran(self) -> frozenset[str]:
        return self.failed | self.passed | self.skipped


def run(
    suite: Suite, package: str, tests: Sequence[str], workers: int, *, again: bool = False
) -> Results:
    """Run these tests.

    :param package: the package whose sessions ours replace; "" for none.
    :param again: True for a second run: without the garbage collector; with tracebacks on our sessions.
    """
    root = suite.unpack()
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch, "results.json")
        paths = [root / suite.sources, _HERE, Path(sa_doclock.__file__).parents[1]]
        if suite.runs_on is not None:
            sqlalchemy = SUITES[suite.runs_on]
            paths.insert(1, sqlalchemy.unpack() / sqlalchemy.sources)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "SA_DOCLOCK_COMPAT_PACKAGE": package,
            "SA_DOCLOCK_COMPAT_RESULTS": str(results),
            "SA_DOCLOCK_COMPAT_COLLECT_GARBAGE": "" if again else "1",
        }
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-p", "locking_sessions", "-p", "no:randomly"),
                *("-p", "no:cacheprovider", "-n", str(workers), "-q", "--maxfail=1000000"),
                *("--rootdir", str(root)),
                *(
                    "-r",
                    "",
                    f"--tb={'short' if package and again else 'no'}",
                    "-W",
                    "ignore::pytest.PytestWarning",
                ),
                *suite.options,
                *tests,
            ],
            cwd=root,
            env=environment,
            check=False,
        )
        found = json.loads(results.read_text(encoding="utf-8"))
    return Results(**{key: frozenset(nodes) for key, nodes in found.items()})


@contextmanager
def on_servers(suite: Suite) -> Iterator[Suite]:
    """Start the servers of a suite for this block, and yield the suite with their URLs."""
    found = find_servers(dict.fromkeys(name for name, _ in suite.drivers)) if suite.drivers else {}
    servers = {name: one for name, one in found.items() if isinstance(one, Server)}
    for name in found.keys() - servers.keys():
        print(f"there is no {name}")
    try:
        urls = (_url_of(servers[name], driver) for name, driver in suite.drivers if name in servers)
        options = (option for url in urls for option in ("--dburi", url))
        yield replace(suite, options=(*suite.options, *options))
    finally:
        stop_all(servers.values())


def _url_of(server: Server, driver: str) -> str:
    url = sa.make_url(server.url)
    url = url.set(drivername=f"{url.get_backend_name()}+{driver}", query={})
    return url.render_as_string(hide_password=False)


def name_of(node: str) -> str:
    """Return a test's id without its parameters and database."""
    return re.sub(r"_[a-z]+\+[a-z]+(_\d+)*(?=::)", "", node.partition("[")[0])


def check(name: str, suite: Suite, tests: Sequence[str], workers: int) -> list[str]:
    """Return the problems of a suite."""
    first = run(suite, suite.package, tests, workers)
    wrong = [] if first.passed else [f"{name}: no test has passed"]
    modules = {node for node in first.failed if "::" not in node}
    wrong += [f"{name}: cannot be imported: {one}" for one in sorted(modules)]
    new = sorted(node for node in first.failed - modules if name_of(node) not in DIFFERENCES)
    if new:
        stock = run(suite, "", new, workers, again=True)
        alone = {*new} - stock.failed
        ours = run(suite, suite.package, sorted(alone), workers, again=True) if alone else stock
        missing = {*new} - stock.ran | alone - ours.ran
        wrong += [f"{name}: was not run again: {one}" for one in sorted(missing)]
        only = alone & ours.failed - missing
        wrong += [f"{name}: fails on our sessions alone: {one}" for one in sorted(only)]
    print(
        f"{name}: {len(first.passed)} passed, {len(first.failed)} failed"
        f" of which {len(new)} are not listed"
    )
    if suite.package == "sqlalchemy":
        passed, failed = ({*map(name_of, nodes)} for nodes in (first.passed, first.failed))
        for one in DIFFERENCES:
            if one in passed - failed:
                print(f"{name}: listed as a difference, and has passed: {one}")
    return wrong


def main() -> int:
    """Run the named suites, or all; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.compat", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}")
    parser.add_argument("--fast", action="store_true", help="the tests about sessions alone")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    wrong: list[str] = []
    for name in arguments.suites or SUITES:
        suite = SUITES[name]
        if sys.version_info < suite.python:
            print(f"{name}: needs Python {'.'.join(map(str, suite.python))}")
            continue
        tests = suite.fast or suite.tests if arguments.fast else suite.tests
        workers = 0 if suite.drivers else arguments.workers  # each would need databases
        with on_servers(suite) as started:
            wrong += check(name, started, tests, workers)
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
