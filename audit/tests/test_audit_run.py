"""``pytest --doclock-audit`` and ``sa-doclock audit``, each on a separate program, and the file formats."""

from __future__ import annotations

import inspect
import io
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import DDL, Engine, create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from doclock_audit.command import progress_lines
from doclock_audit.findings import CODES, AuditFinding, sarif_of
from doclock_audit.paths import Paths
from doclock_audit.rules import Tally
from sa_doclock.testing import Audit, audit, explore_finding

SHOP = """
import os
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

class Base(DeclarativeBase):
    pass

class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]

engine = create_engine(f"sqlite:///{os.getpid()}.db")
Base.metadata.create_all(engine)
with Session(engine) as session:
    session.add_all([Order(id=1, total=0), Order(id=2, total=0)])
    session.commit()

def add(ident):
    with Session(engine) as session:
        order = session.get(Order, ident)
        order.total += 1  # written
        session.commit()

def move(first, second):
    with Session(engine) as session:
        for ident in (first, second):
            session.get(Order, ident, with_for_update=True)
        session.commit()
"""
WRITTEN = 1 + next(n for n, line in enumerate(SHOP.strip().splitlines()) if "# written" in line)
TESTS = """
    import shop

    def test_add():
        shop.add(1)
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p pytest_sa_doclock")
    pytester.makepyfile(shop=SHOP)
    return pytester


def table_of(result: pytest.RunResult) -> list[list[str]]:
    return [line.split() for line in result.outlines if line.startswith(("error ", "warning "))]


def test_the_table_at_the_end(run: pytest.Pytester) -> None:
    path = run.makepyfile(TESTS)
    result = run.runpytest_subprocess("--doclock-audit", path.name)  # a test, not a file
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK
    ((severity, code, times, read, written, flushed),) = table_of(result)
    assert (severity, code, times) == ("error", "lost-update", "1")
    places = [f"shop.py:{WRITTEN + line}" for line in (-1, 0, 1)]
    assert [read, written, flushed] == [f"{places[0]},", f"{places[1]},", places[2]]
    result.stdout.fnmatch_lines(
        ["*cure: lock the row when you read it, at shop.py:*", "1 error, 0 warnings in *"]
    )


def test_the_paths_are_those_of_the_project_with_a_pytest_ini_among_the_tests(
    run: pytest.Pytester,
) -> None:
    tests = run.mkdir("tests")
    (tests / "pytest.ini").write_text("[pytest]\npythonpath = ..\n")
    (tests / "test_shop.py").write_text("import shop\ndef test_add():\n    shop.add(1)\n")
    result = run.runpytest_subprocess("--doclock-audit", "tests")
    result.assert_outcomes(passed=1)
    assert [row[3] for row in table_of(result)] == [f"shop.py:{WRITTEN - 1},"]


def test_a_line_of_a_test_is_possible_at_most(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import shop

        def test_seed():
            with shop.Session(shop.engine) as session:
                session.get(shop.Order, 1).total += 1
                session.commit()
    """)
    result = run.runpytest_subprocess("--doclock-audit", "--doclock-audit-strict")
    assert result.ret == pytest.ExitCode.OK
    assert [row[:2] for row in table_of(result)] == [["warning", "lost-update"]]


@pytest.mark.slow
def test_without_the_option_there_is_none(run: pytest.Pytester) -> None:
    run.makepyfile(TESTS)
    assert "audit (sa_doclock)" not in run.runpytest_subprocess().stdout.str()


@pytest.mark.slow
def test_a_strict_run_fails(run: pytest.Pytester) -> None:
    run.makepyfile(TESTS)
    result = run.runpytest_subprocess("--doclock-audit", "--doclock-audit-strict")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("option", ["-strict", "-package=shop", "-html="])
def test_an_option_without_the_audit_is_refused(run: pytest.Pytester, option: str) -> None:
    result = run.runpytest_subprocess(f"--doclock-audit{option}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    name = option.partition("=")[0]
    result.stderr.fnmatch_lines([f"ERROR: --doclock-audit{name} needs *"])


@pytest.mark.slow
def test_the_workers_report_to_their_controller(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import pytest
        import shop

        @pytest.mark.parametrize("ident", [1, 2, 1, 2])
        def test_add(ident):
            shop.add(ident)

        def test_one_way():
            shop.move(1, 2)

        def test_the_other_way():
            shop.move(2, 1)
    """)
    result = run.runpytest_subprocess(
        *("-p", "xdist", "-n", "2", "--doclock-audit=found.json", "--doclock-audit-strict")
    )
    result.assert_outcomes(passed=6)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    found = json.loads((run.path / "found.json").read_text())
    by_code = {one["code"]: one for one in found}
    assert by_code["lost-update"]["count"] == 4
    assert by_code["lock-order-cycle"]["count"] >= 1  # two workers may have seen one order each
    assert by_code["lock-without-effect"]["count"] == 4


def test_a_file_of_another_format_is_refused(run: pytest.Pytester) -> None:
    run.makepyfile(TESTS)
    result = run.runpytest_subprocess("--doclock-audit=found.xml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*the name must end with .json or .sarif*"])


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "sa_doclock", "audit", *arguments]
    return subprocess.run(program, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(
        f"import sys\n{SHOP}\nfor ident in sys.argv[1:]:\n    add(int(ident))\nprint('done')\n"
    )
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [("shop.py",), ("python", "shop.py"), ("-m", "shop")], ids="-".join
)
def test_the_command_runs_a_program(shop: Path, program: tuple[str, ...]) -> None:
    done = command(shop, "--json", "--", *program, "1", "2")
    assert (done.returncode, done.stderr) == (2, "done\n")
    (finding,) = json.loads(done.stdout)
    assert (finding["code"], finding["certain"], finding["count"]) == ("lost-update", True, 2)
    assert finding["sites"][1] == f"shop.py:{WRITTEN + 2}"
    assert finding["tests"] == []  # the running test does not belong to that process


@pytest.mark.slow
def test_the_command_has_the_exit_status_of_the_program(shop: Path) -> None:
    assert command(shop, "--", "shop.py").returncode == 0
    failed = command(shop, "--", "shop.py", "x")
    assert failed.returncode == 1
    assert "ValueError: invalid literal" in failed.stderr
    (shop / "axis.py").write_text("raise SystemExit(7)")
    assert command(shop, "--", "axis.py").returncode == 7
    missing = command(shop, "--", "no-such-program")
    assert (missing.returncode, missing.stderr) == (
        2,
        "sa-doclock: there is no program 'no-such-program'\n",
    )


def test_the_command_writes_sarif(shop: Path) -> None:
    done = command(shop, "--sarif", "found.sarif", "--", "shop.py", "1")
    assert "1 error, 0 warnings" in done.stdout
    check_sarif(json.loads((shop / "found.sarif").read_text()), shop)


def check_sarif(log: Any, root: Path) -> None:
    """Check the members that the schema of SARIF 2.1.0 requires, and the members that code forges read."""
    assert (log["version"], log.keys()) == ("2.1.0", {"$schema", "version", "runs"})
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(CODES)
    assert run["originalUriBaseIds"]["%SRCROOT%"]["uri"] == f"{root.as_uri()}/"
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning")
        assert result["occurrenceCount"] >= 1
        places = [*result["locations"], *result["relatedLocations"]]
        for place in (one["physicalLocation"] for one in places):
            uri = place["artifactLocation"]
            assert place["region"]["startLine"] >= 1
            assert (root / uri["uri"]).is_file() == ("uriBaseId" in uri)


def test_sarif_of_a_place_outside_of_the_folder_and_of_none(tmp_path: Path) -> None:
    outside = (f"{tmp_path}/a b.py:3", "<unknown>:0")
    finding = AuditFinding("lost-update", "warning", False, "text", outside, "cure", 1)
    log = json.loads(sarif_of([finding], Paths(Path.cwd())))
    (result,) = log["runs"][0]["results"]
    (place,) = result["locations"]
    uri = place["physicalLocation"]["artifactLocation"]["uri"]
    assert (uri, result["relatedLocations"]) == ((tmp_path / "a b.py").as_uri(), [])


def test_a_tally_is_bounded_and_says_so() -> None:
    tally = Tally(limit=2)
    for number in (1, 2, 3, 3, 1):
        tally.add((number,))
    assert (dict(tally), tally.left_out) == ({(1,): 2, (2,): 1}, 2)
    merged = Tally()
    merged.merge(json.loads(json.dumps(tally.export())))
    assert (dict(merged), merged.left_out) == ({(1,): 2, (2,): 1}, 2)


def test_a_run_without_a_statement_says_so() -> None:
    first, second = Audit().report().splitlines()
    assert first == "0 errors, 0 warnings in 0 statements of 0 transactions"
    assert second.startswith("no statement was seen")


def test_what_had_no_room_is_reported() -> None:
    audit = Audit()
    exported = audit.export()
    exported["counts"] = [5, 2, 7]
    exported["failures"] = [1, "Traceback"]
    audit.merge(json.loads(json.dumps(exported)))
    assert audit.report().splitlines() == [
        "0 errors, 0 warnings in 5 statements of 2 transactions",
        "7 observations exceeded the limits, so findings might be missing",
        "the audit failed 1 time, so findings might be missing; the first error:",
        "Traceback",
    ]


class Lines(io.StringIO):
    """A stream that signals each written line."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed = threading.Event()

    def flush(self) -> None:
        self.flushed.set()


def test_a_long_run_shows_how_far_it_is() -> None:
    lines = Lines()
    with audit() as found, progress_lines(found, lines, seconds=0.001):
        with create_engine("sqlite://").connect() as connection:
            connection.execute(text("SELECT 1"))
        lines.flushed.clear()
        assert lines.flushed.wait(30)
    written = lines.getvalue().splitlines()
    assert re.fullmatch(r"sa-doclock audit: \d+ s, 1 statements, 1 transactions", written[-1])


def test_a_short_run_shows_nothing() -> None:
    lines = Lines()
    with audit() as found, progress_lines(found, lines):
        pass
    assert lines.getvalue() == ""


class Base(DeclarativeBase):
    pass


class Counter(Base):
    __tablename__ = "counter"
    id: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[int]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'file.db'}")
    Base.metadata.create_all(engine)
    start_over(engine)
    yield engine
    engine.dispose()


def start_over(engine: Engine) -> None:
    with Session(engine) as session:
        session.merge(Counter(id=1, value=0))
        session.commit()


def count(engine: Engine, *, migrates: bool = False) -> None:
    with Session(engine) as session:
        counter = session.get_one(Counter, 1)
        counter.value += 1
        if migrates:
            session.execute(DDL("CREATE TABLE IF NOT EXISTS another (id INTEGER)"))  # type: ignore[no-untyped-call]
        session.commit()


def test_a_migration_of_data_has_none_either(engine: Engine, tmp_path: Path) -> None:
    source = f"revision, down_revision = 'b', 'a'\n{inspect.getsource(count)}"
    path = tmp_path / "b_add.py"
    path.write_text(f"from __future__ import annotations\n{source}")
    migration = {"Session": Session, "Counter": Counter, "__name__": "b_add"}
    exec(compile(path.read_text(), path, "exec"), migration)  # as Alembic does
    with audit() as found:
        migration["count"](engine)  # type: ignore[operator]
    assert [(one.code, one.certain) for one in found.findings] == [("lost-update", False)]


@pytest.mark.parametrize("migrates", [False, True])
def test_a_migration_has_no_certain_lost_update(engine: Engine, migrates: bool) -> None:
    with audit() as found:
        count(engine, migrates=migrates)
    lost = [one.certain for one in found.findings if one.code == "lost-update"]
    assert lost == [not migrates]


def test_a_finding_is_replayed(engine: Engine) -> None:
    with audit() as found:
        count(engine)
    finding = next(one for one in found.findings if one.code == "lost-update")

    def value() -> int:
        with Session(engine) as session:
            return session.get_one(Counter, 1).value

    replayed = explore_finding(
        finding,
        lambda: count(engine),
        before=lambda: start_over(engine),
        invariant=lambda: value() == 2,
    )
    assert {one.anomaly for one in replayed.failures} == {"lost update"}
    with pytest.raises(ValueError, match=r"do not execute the lines of this lost-update: .*\.py:"):
        explore_finding(
            finding, lambda: value() and None, before=lambda: None, invariant=lambda: True
        )
