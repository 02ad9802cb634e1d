"""The command line starts, prints its output, and escapes styles, links and controls in data."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from typer.testing import CliRunner

import sa_doclock as sa_doclock_package
from sa_doclock import LockingSession, LockOptions, document
from sa_doclock.tools.cli import demo, stress, waits
from sa_doclock.tools.cli.app import app
from sa_doclock.tools.cli.database import open_database
from sa_doclock.tools.cli.demo import SAME_LINE, TWO_LINES, click_twice, watch_order
from sa_doclock.tools.cli.workload import Plan, RunOutcome, first_line, fresh_tables
from sa_doclock.tools.cli.workload.runner import ErrorKind, RunTally
from sa_doclock.tools.cli.workload.tables import PREFIX
from sa_doclock.wait_info import LockConnection, LockWait
from tests.integration.checkouts.models import CHECKOUTS, TABLE, Article
from tests.integration.checkouts.models import Base as CheckoutBase
from tests.integration.cli.conftest import ROOT, Process
from tests.support.databases import Database

# --------------------------------------------------------------------------------------------------
# A table name that contains a style, a link, an emoji, a color and a new line.

HOSTILE: Final = (
    "[/x] [bold] [link=http://x] :bug: \x1b[31m\x1b]8;;http://x\x07 \x9b2J\u202e \r\nok %s {0}"
)


class Base(DeclarativeBase):
    pass


@document
class Strange(Base):
    __tablename__ = HOSTILE
    id: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[int] = mapped_column(HOSTILE, default=0)


# --------------------------------------------------------------------------------------------------
# The command line starts: help, version, and messages when it cannot start.

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


# --------------------------------------------------------------------------------------------------
# ``sa-doclock demo`` tells its stories on every database.

both_cases = pytest.mark.parametrize("names", [SAME_LINE, TWO_LINES], ids=["same", "other"])


@pytest.fixture
def engine_demo_command(database: Database) -> Iterator[Engine]:
    with open_database(database.url, 2) as target, fresh_tables(target.engine):
        yield target.engine


@both_cases
def test_a_double_click_goes_wrong_without_a_lock(
    engine_demo_command: Engine, names: tuple[str, str]
) -> None:
    clicks = click_twice(engine_demo_command, LockOptions.None_, names)
    assert not clicks.fine, clicks


@both_cases
def test_a_double_click_is_harmless_with_a_lock(
    engine_demo_command: Engine, names: tuple[str, str]
) -> None:
    clicks = click_twice(engine_demo_command, LockOptions.ForUpdate, names)
    assert clicks.fine, clicks
    assert clicks.lines.keys() == {"N0", "N1", *names}


def test_a_shared_read_never_sees_a_wrong_total(engine_demo_command: Engine) -> None:
    seen = watch_order(
        engine_demo_command, LockOptions.ForUpdate, LockOptions.SharedRead, 0.5, lambda *_: None
    )
    assert seen.wrong == 0
    assert seen.reads > 0
    assert seen.changes > 0


def test_a_writer_that_fails_ends_the_watching(
    engine_demo_command: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_doclock.tools.cli.demo._change", lambda *_: 1 / 0)
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        watch_order(
            engine_demo_command, LockOptions.None_, LockOptions.None_, 3600, lambda *_: None
        )
    assert threading.active_count() == before


@pytest.mark.slow
def test_the_whole_demo_needs_no_database(sa_doclock: Run) -> None:
    process = sa_doclock("demo", PYTHONIOENCODING="ascii", NO_COLOR="1", COLUMNS="80")
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stderr == ""
    output = process.stdout
    assert "\x1b" not in output
    assert max(map(len, output.splitlines()[2:])) <= 80
    for words in (
        "the same line twice  error: IntegrityError       fine: total 22, lines 22",
        "two different lines  BROKEN: total 22, lines 29  fine: total 29, lines 29",
        "of them with a wrong total",
        "1500 of 1500",
    ):
        assert words in output
    assert re.search("without locks +with locks", output)
    assert output.splitlines()[-1] == "OK: without locks things went wrong, with them nothing did"
    file = re.search(r"sqlite:///(\S+)", output)
    assert file
    assert not Path(file[1]).parent.exists()


# --------------------------------------------------------------------------------------------------
# Every command prints data as plain text: no style, link, emoji, control code or line break.

KEY = HOSTILE[:40]
ARTICLE = "tests.integration.checkouts.models:Article"
STRANGE = "tests.integration.cli.test_main:"
LITERAL = "[/x] [bold] [link=http://x] :bug:"
PROGRAM = """
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from tests.integration.cli.test_main import Base, Strange

engine = create_engine("sqlite:///audited.db")
Base.metadata.create_all(engine)
with Session(engine) as session:
    session.add(Strange(id=1))
    session.commit()
with Session(engine) as session:
    session.get(Strange, 1).value += 1
    session.commit()
"""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{tmp_path / 'mine.db'}"


@pytest.fixture
def engine(url: str) -> sa.Engine:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    CheckoutBase.metadata.create_all(engine)
    with LockingSession(engine, guard="off", checkouts=CHECKOUTS) as session:
        session.add(Article(code=KEY))
        session.commit()
        session.check_out(Article, KEY, HOSTILE, note=HOSTILE)
        session.commit()
    return engine


def shown(*words: str) -> str:
    """Run the command on a wide screen; check each character of its output, and return it."""
    result = CliRunner().invoke(app, words, catch_exceptions=False, env={"COLUMNS": "5000"})
    strange = [one for one in result.output if not one.isprintable() and one != "\n"]
    assert strange == [], result.output
    assert "\nok %s" not in result.output, result.output
    return result.output


def checkouts(url: str, _patch: pytest.MonkeyPatch) -> str:
    output = shown("checkouts", "--url", url, "--table", TABLE)
    assert output.count(LITERAL) == 3  # the key, the owner and the note
    (one,) = json.loads(
        shown("checkouts", "--url", url, "--table", TABLE, "--json", "--owner", HOSTILE)
    )
    assert (one["owner"], one["note"]) == (HOSTILE, HOSTILE)
    return output


def take_over(url: str, _patch: pytest.MonkeyPatch) -> str:
    owner = ("--owner", HOSTILE.upper(), "--note", HOSTILE, "--yes")
    output = shown("take-over", "--url", url, "--table", TABLE, *owner, ARTICLE, KEY)
    assert output.count(LITERAL.upper()) == 1
    assert output.count("has it since") == 2
    return output


def check_in(url: str, _patch: pytest.MonkeyPatch) -> str:
    output = shown("check-in", "--url", url, "--table", TABLE, "--yes", ARTICLE, KEY)
    assert output.endswith(": checked in\n")
    return output


def see_waits(url: str, patch: pytest.MonkeyPatch) -> str:
    one, two = (
        LockConnection(number, HOSTILE, HOSTILE, HOSTILE, 1.0, HOSTILE, host=HOSTILE)
        for number in (1, 2)
    )
    found = [LockWait(one, two, two, HOSTILE, HOSTILE, 1.0)]
    patch.setattr(waits, "lock_waits", lambda _engine: found)
    ((known,),) = [json.loads(shown("waits", "--url", url, "--json"))]
    assert known["table"] == HOSTILE
    return shown("waits", "--url", url)


def doctor(url: str, _patch: pytest.MonkeyPatch) -> str:
    return shown("doctor", "--url", url, "--models", f"{STRANGE}Base")


def explain(url: str, _patch: pytest.MonkeyPatch) -> str:
    Base.metadata.create_all(sa.create_engine(url))
    return shown("explain", "--url", url, f"{STRANGE}Strange", "ForUpdate")


def audit(_url: str, _patch: pytest.MonkeyPatch) -> str:
    program = Path(f"[bold]\x1b{HOSTILE[-9:-7]}.py")
    program.write_text(PROGRAM, encoding="utf-8")
    output = shown("audit", "--", str(program))
    assert "lost-update" in output
    return output


def see_stress(url: str, patch: pytest.MonkeyPatch) -> str:
    plan = Plan(documents=1, threads=1, iterations=1)
    tally = RunTally(errors={"OperationalError": ErrorKind(1, first_line(ValueError(HOSTILE)))})
    patch.setattr(stress, "run_with_progress", lambda *_: RunOutcome(plan, tally, (), 1.0, False))
    output = shown("stress", "--url", with_table(url))
    assert output.count(LITERAL) == 2  # the table and the message
    return output


def see_demo(url: str, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(demo, "_run_scenes", lambda _out, _target: 0)
    return shown("demo", "--url", with_table(url))


def with_table(url: str) -> str:
    """Create a table that could belong to another run."""
    with sa.create_engine(url).begin() as connection:
        sa.Table(f"{PREFIX}{HOSTILE}", sa.MetaData(), sa.Column("id", sa.Integer)).create(
            connection
        )
    return url


COMMANDS: dict[str, Callable[[str, pytest.MonkeyPatch], str]] = {
    "demo": see_demo,
    "stress": see_stress,
    "waits": see_waits,
    "doctor": doctor,
    "explain": explain,
    "checkouts": checkouts,
    "take-over": take_over,
    "check-in": check_in,
    "audit": audit,
}


def test_each_command_has_its_case() -> None:
    functions = [one.callback for one in app.registered_commands]
    assert [one.__name__.replace("_", "-") for one in functions if one] == [*COMMANDS]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("command", COMMANDS)
def test_data_is_text(command: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output = COMMANDS[command](url, monkeypatch)
    assert LITERAL in output or re.search(r"\[bold\]\\x1b\S*\.py", output), output


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"audit"}))
def test_the_text_of_an_error_is_text(command: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/{HOSTILE}/no.db"
    more = {
        "take-over": ("--owner", HOSTILE, ARTICLE, KEY),
        "check-in": (ARTICLE, KEY),
        "explain": (ARTICLE, "ForUpdate"),
    }
    output = shown(command, "--url", url, *more.get(command, ()))
    assert output.startswith("sa-doclock: cannot connect to sqlite:///"), output
    assert LITERAL in output or "%5B/x%5D" in output, output


def test_a_table_that_is_not_there_is_named_as_text(url: str) -> None:
    sa.create_engine(url).connect().close()
    assert LITERAL in shown("checkouts", "--url", url, "--table", HOSTILE)


def test_a_program_that_is_not_there_is_named_as_text() -> None:
    assert "[/x]" in shown("audit", "--", HOSTILE)
