"""``python -m tests.compat``: run the tests of others on our sessions, and compare.

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sa_doclock
from tests.compat.differences import DIFFERENCES
from tests.support.servers.cache import cached

_HERE = Path(__file__).parent
_ORM = tuple(
    f"test/orm/test_{name}.py"
    for name in (
        *("session", "transaction", "events", "scoping", "versioning", "lockmode"),
        *("expire", "bind"),
    )
)


@dataclass(frozen=True)
class Suite:
    """The tests of one release.

    :ivar sources: the folder of its package, in the folder that is unpacked.
    :ivar tests: all of its tests that make sessions.
    :ivar fast: those of them that are about sessions.
    :ivar python: the oldest version that it runs on.
    :ivar options: for its pytest.
    :ivar runs_on: the suite of the SQLAlchemy that it needs; None for the installed one.
    """

    requirement: str
    package: str
    sources: str
    tests: tuple[str, ...]
    fast: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 10)
    runs_on: str | None = None
    options: tuple[str, ...] = ()

    def unpack(self) -> Path:
        """Return the folder of the release, downloaded by pip where it is not there yet."""
        return next(cached(f"compat-{self.requirement}", self._download).iterdir())

    def _download(self, folder: Path) -> None:
        name = self.requirement.partition("==")[0]
        with tempfile.TemporaryDirectory() as scratch:
            subprocess.run(
                [
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
    (*_ORM, "test/orm/dml", "test/ext/asyncio"),
)
# Files: a database in memory has one connection for all sessions, on which no lock is possible.
_FILES = ("--db", "sqlite_file", "--db", "aiosqlite_file")
SUITES = {
    "sqlalchemy-2.1": Suite("SQLAlchemy==2.1.9", *_SQLALCHEMY, python=(3, 11), options=_FILES),
    "sqlalchemy-2.0": Suite("SQLAlchemy==2.0.58", *_SQLALCHEMY, options=_FILES),
    "sqlmodel": Suite("sqlmodel==0.0.50", "sqlmodel", ".", ("tests",), python=(3, 11)),
    # A third of its own tests fails with SQLAlchemy 2.1, on its own sessions too.
    "flask-sqlalchemy": Suite(
        "flask-sqlalchemy==3.1.1", "flask_sqlalchemy", "src", ("tests",), runs_on="sqlalchemy-2.0"
    ),
}


def run(
    suite: Suite, package: str, tests: Sequence[str], workers: int, *, again: bool = False
) -> tuple[list[str], int]:
    """Run these tests; return the ids of those that failed, and the number of those that passed.

    :param package: whose sessions are replaced by ours; "" for none.
    :param again: True for a second run: without the garbage collector; on our sessions, with the tracebacks.
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
    return found["failed"], found["passed"]


def name_of(node: str) -> str:
    """Return the id of a test without its parameters and its database."""
    return re.sub(r"_[a-z]+\+[a-z]+(_\d+)*(?=::)", "", node.partition("[")[0])


def check(name: str, suite: Suite, tests: Sequence[str], workers: int) -> list[str]:
    """Return what is wrong with a suite."""
    failed, passed = run(suite, suite.package, tests, workers)
    wrong = [] if passed else [f"{name}: no test has passed"]
    new = [node for node in failed if name_of(node) not in DIFFERENCES]
    if new:
        stock = run(suite, "", new, workers, again=True)[0]
        if alone := {*new} - {*stock}:
            alone &= {*run(suite, suite.package, sorted(alone), workers, again=True)[0]}
        wrong += [f"{name}: fails on our sessions alone: {one}" for one in sorted(alone)]
    print(f"{name}: {passed} passed, {len(failed)} failed of which {len(new)} are not listed")
    if suite.package == "sqlalchemy":
        found = {name_of(node) for node in failed}
        for one in DIFFERENCES:
            if one not in found:
                print(f"{name}: listed as a difference, and has passed: {one}")
    return wrong


def main() -> int:
    """Run the suites that are named, or all; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__)
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
        wrong += check(name, suite, tests, arguments.workers)
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
