"""``sa-doclock explain``: for people, as JSON, and what cannot be explained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sa_doclock import LockOptions, explain_lock
from sa_doclock.tools.cli.app import app
from tests.integration.cli.conftest import Process
from tests.support.databases import Database
from tests.support.models import Order

ORDER = "tests.support.models:Order"


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["explain", *words], catch_exceptions=False)
    return result.exit_code, result.output


def test_the_text_is_that_of_the_function(documents: Database) -> None:
    reported = explain_lock(documents.engine(), Order, LockOptions.ForUpdate | LockOptions.NoWait)
    words = ("--url", documents.url, ORDER, "ForUpdate | NoWait")
    assert invoke(*words) == (0, f"{reported}\n")


def test_json(documents: Database) -> None:
    status, output = invoke(
        "--url", documents.url, "--json", "--lock-timeout", "0.3", ORDER, "SharedRead"
    )
    reported = json.loads(output)
    assert status == 0
    assert (reported["entity"], reported["lock"], reported["database"]) == (
        ORDER,
        "SharedRead",
        documents.name,
    )
    assert reported.keys() >= {"level", "statements", "rows", "waits_for", "notes"}
    assert any("lk_order" in one for one in reported["statements"])


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("tests.support.models:Order", "Update"), "there is no lock 'Update': None_, NoLock"),
        (("tests.support.models:Order", "ForUpdate|SharedRead"), "collide"),
        (("tests.support.models:Order", "ForUpdate|SkipLocked"), "cannot skip single rows"),
        (("tests.support.models:ROWS", "ForUpdate"), "there is no ROWS in tests.support.models"),
        (("json:JSONDecoder", "ForUpdate"), "entity must be a mapped class"),
        (("tests.support.models:Order", "SnapshotRead", "--lock-timeout", "1"), "never waits"),
    ],
)
def test_what_cannot_be_explained(
    documents: Database, words: tuple[str, ...], reported: str
) -> None:
    status, output = invoke("--url", documents.url, *words)
    assert status == 2, output
    assert reported in output
    assert output.startswith("sa-doclock: ")


BROKEN = {
    "broken_syntax": ("def f(:", "cannot be imported: invalid syntax (broken_syntax.py, line 1)"),
    "broken_key": ("import os\n\nos.environ['MISSING']", "KeyError at {folder}/broken_key.py:3: "),
    "broken_exit": ("raise SystemExit('no settings')", "broken_exit.py:1: no settings"),
    "broken_two": (r"raise ValueError('one\ntwo')", "ValueError at {folder}/broken_two.py:1: one"),
    "broken_import": ("import is_missing", "cannot be imported: No module named 'is_missing'"),
    ".broken": ("", "'.broken:X' is not package.module:Name"),
}

NO_CLASS = """\
from sqlalchemy import Column, Integer
from sqlalchemy.orm import declarative_base, relationship

Base = declarative_base()


class X(Base):
    __tablename__ = "broken"
    id = Column(Integer, primary_key=True)
    missing = relationship("Missing")
"""


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("module", BROKEN)
@pytest.mark.parametrize("command", ["explain", "doctor"])
def test_a_module_that_cannot_be_imported_is_reported_on_one_line(
    documents: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, module: str
) -> None:
    source, reported = BROKEN[module]
    (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    name = f"{module}:X"
    words = [name, "ForUpdate"] if command == "explain" else ["--models", name]
    result = CliRunner().invoke(
        app, [command, "--url", documents.url, *words], catch_exceptions=False
    )
    assert result.exit_code == 2
    assert result.output.startswith("sa-doclock: ")
    assert reported.format(folder=tmp_path) in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    "words", [("explain", "no_class:X", "ForUpdate"), ("doctor", "--models", "no_class:X")]
)
def test_a_mapping_that_is_wrong_is_reported_on_one_line(
    sa_doclock: Callable[..., Process], tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "no_class.py").write_text(NO_CLASS, encoding="utf-8")
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    process = sa_doclock(*words, SA_DOCLOCK_URL=url, PYTHONPATH=str(tmp_path))
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith("sa-doclock: ")
    assert "expression 'Missing' failed to locate a name" in process.stderr
    assert process.stderr.count("\n") == 1
