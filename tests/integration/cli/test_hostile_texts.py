"""Data in the output of each command is text: no style, link, emoji or control of the terminal, no line of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from sa_doclock import LockingSession
from sa_doclock.tools.cli import demo, stress, waits
from sa_doclock.tools.cli.app import app
from sa_doclock.tools.cli.workload import Outcome, Plan, first_line
from sa_doclock.tools.cli.workload.runner import ErrorKind, Tally
from sa_doclock.tools.cli.workload.tables import PREFIX
from sa_doclock.wait_info import LockConnection, LockWait
from tests.integration.checkouts.models import CHECKOUTS, TABLE, Article
from tests.integration.checkouts.models import Base as CheckoutBase
from tests.integration.cli.hostile import HOSTILE, Base

KEY = HOSTILE[:40]
ARTICLE = "tests.integration.checkouts.models:Article"
STRANGE = "tests.integration.cli.hostile:"
LITERAL = "[/x] [bold] [link=http://x] :bug:"
PROGRAM = """
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from tests.integration.cli.hostile import Base, Strange

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
    """Run the command on a wide screen; return what it shows, after a look at each character."""
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
    tally = Tally(errors={"OperationalError": ErrorKind(1, first_line(ValueError(HOSTILE)))})
    patch.setattr(stress, "run_with_progress", lambda *_: Outcome(plan, tally, (), 1.0, False))
    output = shown("stress", "--url", with_table(url))
    assert output.count(LITERAL) == 2  # the table and the message
    return output


def see_demo(url: str, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(demo, "_run_scenes", lambda _out, _target: 0)
    return shown("demo", "--url", with_table(url))


def with_table(url: str) -> str:
    """Make a table that could be one of another run."""
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
