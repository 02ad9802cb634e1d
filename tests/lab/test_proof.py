"""The proof's page, on available databases; and its text without any."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from sqlalchemy import make_url

from lab.proof.__main__ import NO_DATABASE, main
from lab.proof.address import secrets, shown
from lab.proof.blocking import blocking
from lab.proof.column import claims, counted
from lab.proof.page import Part, made, page
from lab.proof.questions import questions
from lab.proof.stress import stress
from sa_doclock import LockOptions
from tests.support.databases import Database

ROOT = Path(__file__).parents[2]
ARGUMENTS = ["--threads", "4", "--iterations", "20"]
REPORT = """
<testsuites><testsuite>
<testcase classname="tests.a" name="one"/>
<testcase classname="tests.a" name="two"><skipped message="no mssql"/></testcase>
<testcase classname="tests.b" name="three"><failure message="AssertionError: no&#10;lock"/></testcase>
<testcase classname="tests.b" name="four"><error message="x"/></testcase>
</testsuite></testsuites>"""


def run(url: str | None, database: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    variable = f"SA_DOCLOCK_TEST_{database.upper()}_URL"
    if url is None:
        monkeypatch.delenv(variable, raising=False)
    else:
        monkeypatch.setenv(variable, url)
    return main([database, *arguments])


def test_without_a_url_it_says_how_to_give_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    results = tmp_path / "proof.md"
    assert run(None, "mssql", monkeypatch, "--results", str(results)) == NO_DATABASE
    assert "make mssql-proof URL=" in capsys.readouterr().err
    assert not results.exists()


@pytest.mark.parametrize(
    ("url", "reported"),
    [
        ("postgresql+psycopg://ann:secret@127.0.0.1:1/x", "no connection: "),
        ("no URL, with a secret", "the URL is no URL of SQLAlchemy"),
    ],
)
def test_where_nobody_answers_no_password_is_shown(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    url: str,
    reported: str,
) -> None:
    results = tmp_path / "proof.md"
    assert run(url, "postgresql", monkeypatch, "--results", str(results)) == NO_DATABASE
    error = capsys.readouterr().err
    assert reported in error
    assert "secret" not in error
    assert not results.exists()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_whole_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    results = tmp_path / "proof.md"
    url = f"sqlite:///{tmp_path / 'proof.db'}"
    limits = ["--results", str(results), *ARGUMENTS]
    tests = [
        "--",
        "tests/integration/locking/blocks/test_release.py",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    assert run(url, "sqlite", monkeypatch, *limits, *tests) == 0
    text = results.read_text("utf-8")
    assert text in capsys.readouterr().out
    assert "**Everything holds.**" in text
    for title in ("Versions", "Blocking", "Stress", "Tests"):
        assert f"## {title}" in text
    assert "control: without locks" in text
    assert "limited by `tests/integration/locking/blocks/test_release.py" in text


@pytest.mark.parametrize(
    "url",
    [
        "mssql+pymssql://ann:secret@db:1433/shop",
        "mssql+pyodbc:///?odbc_connect=DRIVER%3D18%3BSERVER%3Ddb%3BUID%3Dann%3BPWD%3Dsecret%3B",
    ],
)
def test_no_secret_of_the_url_is_on_the_page(url: str) -> None:
    parsed = make_url(url)
    assert "secret" not in shown(parsed)
    assert "secret" not in page("A", [Part("One", ["login by secret failed"])], secrets(parsed))


def test_make_gives_the_url_and_shows_no_password() -> None:
    url = "mssql+pyodbc://ann:secret@host/x?driver=a+b&Encrypt=yes"
    command = ["make", "--dry-run", "mssql-proof", f"URL={url}"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "-m lab.proof mssql --results mssql-proof.md" in shown
    assert "secret" not in shown


def test_each_claim_of_a_real_server_has_the_results_of_its_tests() -> None:
    (claim, files), *_ = claims().items()
    module = files[0].removesuffix(".py").replace("/", ".")
    report = (
        f'<testsuites><testsuite><testcase classname="{module}" name="a"/></testsuite></testsuites>'
    )
    lines = counted(report, []).lines
    assert f"| {claim} | 1 passed |" in lines
    assert sum("none has run" in line for line in lines) >= len(claims()) - 2
    assert all((ROOT / path).is_file() for paths in claims().values() for path in paths)


def test_the_issue_template_has_the_command_and_a_place_for_the_page() -> None:
    template = (ROOT / ".github/ISSUE_TEMPLATE/sql-server-proof.md").read_text("utf-8")
    assert "make mssql-proof URL=" in template
    assert "**mssql-proof.md** (attach the file, or paste it):" in template


def test_a_failure_is_named_and_a_skipped_test_counted() -> None:
    part = counted(REPORT, [])
    assert part.holds is False
    assert part.lines[0] == "1 passed, 1 failed, 1 error, 1 skipped."
    assert "- `tests.b.three`: AssertionError: no lock" in part.lines


def test_no_test_at_all_proves_nothing() -> None:
    assert counted("<testsuites><testsuite/></testsuites>", ["-k none"]).holds is False


def test_a_part_that_cannot_be_run_stops_no_other_and_tells_no_password() -> None:
    def fails() -> Part:
        raise RuntimeError("cannot connect by secret")

    text = page("A", [made("One", fails), Part("Two", ["facts"])], ["secret"])
    assert "**Does not hold: One.**" in text
    assert "RuntimeError: cannot connect by ***" in text
    assert "facts" in text


def test_a_control_that_finds_nothing_proves_nothing(tmp_path: Path) -> None:
    part = stress(f"sqlite:///{tmp_path / 'alone.db'}", threads=1, iterations=2)
    assert part.holds is False
    assert "proves nothing" in part.lines[-1]


@pytest.mark.databases("postgresql", "mssql")
def test_the_server_says_who_waits(database: Database) -> None:
    part = blocking(database.engine())
    assert part.holds is True, part.lines
    assert any("waits for" in line for line in part.lines)


@pytest.mark.databases("postgresql", "mssql")
def test_without_a_lock_nobody_waits_and_it_does_not_hold(database: Database) -> None:
    part = blocking(database.engine(), LockOptions.NoLock)
    assert part.holds is False
    assert "- **NO**: a second lock waits, as the server says" in part.lines


@pytest.mark.databases("postgresql", "mssql")
def test_questions_are_answered_by_the_server(database: Database) -> None:
    part = questions(database.engine())
    assert part.holds is not False
    answers = "\n".join(part.lines)
    assert "different rows, without an index for ORDER BY? | " in answers
    assert "And with the index? | yes | no: that index is not enough" in answers
    assert "1000 in " in answers
    assert "Could not be run" not in answers
    if database.name == "postgresql":  # only its pages report this
        assert "savepoint release the locks taken in it? | yes |" in answers
        assert "only changed? | yes |" in answers
        assert "change of that index's column? | no |" in answers


@pytest.mark.databases("mysql", "mariadb")
def test_a_deadlock_at_the_row_that_an_index_finds_is_seen(database: Database) -> None:
    """InnoDB locks the entry of the index first, as SQL Server does."""
    answers = "\n".join(questions(database.engine()).lines)
    assert "change of that index's column? | yes: the victim is the " in answers
