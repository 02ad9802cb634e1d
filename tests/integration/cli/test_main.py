"""The command line starts: its help, its version, and its messages when it cannot start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sa_doclock as sa_doclock_package
from tests.integration.cli.conftest import ROOT, Process

Run = Callable[..., Process]
UMLAUT = """\
from sqlalchemy import Column, ForeignKey, Integer, create_engine
from sqlalchemy.orm import declarative_base, relationship

Base = declarative_base()


class Book(Base):
    __tablename__ = "book"
    id = Column(Integer, primary_key=True)
    pages = relationship("Page")


class Page(Base):
    __tablename__ = "bl\u00e4tter"
    id = Column(Integer, primary_key=True)
    book_id = Column(ForeignKey(Book.id))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [(), ("stress",), ("demo",), ("waits",), ("doctor",), ("explain",)]
)
def test_help(sa_doclock: Run, words: tuple[str, ...]) -> None:
    process = sa_doclock(*words, "--help", PYTHONIOENCODING="ascii")
    assert process.returncode == 0
    assert process.stderr == ""
    assert max(map(len, process.stdout.splitlines())) <= 80


def test_the_list_of_commands_is_not_cut(sa_doclock: Run) -> None:
    commands = sa_doclock("--help").stdout.partition("Commands:")[2]
    assert "demo" in commands
    assert "..." not in commands


def test_python_runs_the_package_too() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "sa_doclock", "--version"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout == f"sa-doclock {sa_doclock_package.__version__}\n"


@pytest.mark.slow
def test_help_names_every_option(sa_doclock: Run) -> None:
    reported = sa_doclock("stress", "--help").stdout
    for option in (
        "--url",
        "--documents",
        "--threads",
        "--iterations",
        "--no-locks",
        "--details-only",
        "--read",
        "--seed",
        "--json",
    ):
        assert option in reported


def test_what_a_stream_cannot_take_is_written_as_python_does(
    sa_doclock: Run, tmp_path: Path
) -> None:
    (tmp_path / "umlaut.py").write_text(UMLAUT, encoding="utf-8")
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(tmp_path)}
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    process = sa_doclock("doctor", "--models", "umlaut:Base", "--url", url, **environment)
    assert process.returncode == 0, process.stderr
    assert r"bl\xe4tter" in process.stdout


@pytest.mark.slow
def test_without_a_command_it_shows_the_help(sa_doclock: Run) -> None:
    process = sa_doclock()
    assert "demo" in process.stdout + process.stderr
    assert "stress" in process.stdout + process.stderr


@pytest.mark.slow
def test_version(sa_doclock: Run) -> None:
    assert sa_doclock("--version").stdout.startswith("sa-doclock")


def start_without(missing: str) -> Process:
    program = (
        f"import sys; sys.modules[{missing!r}] = None; import sa_doclock.tools.cli as c; c.main()"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(missing: str) -> None:
    process = start_without(missing)
    assert process.returncode == 2
    assert process.stderr == (
        f"sa-doclock: the command line needs {missing}, which is not installed: "
        "pip install 'sa-doclock[cli]'\n"
    )


@pytest.mark.slow
def test_another_missing_module_is_not_blamed_on_the_extra() -> None:
    process = start_without("sa_doclock.tools.cli.waits")
    assert process.returncode == 1
    assert "ModuleNotFoundError" in process.stderr
    assert "pip install" not in process.stderr
