"""``sa-doclock checkouts``, ``take-over`` and ``check-in``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker
from typer.testing import CliRunner

from sa_doclock import LockingSession
from sa_doclock.tools.cli.app import app
from tests.integration.checkouts.models import CHECKOUTS, TABLE, Base, Order, expire
from tests.support.databases import Database

ORDER = "tests.integration.checkouts.models:Order"


@pytest.fixture
def engine(database: Database) -> sa.Engine:
    """Make two orders; the first is checked out by Ann."""
    database.create(Base.metadata)
    engine = database.engine()
    with LockingSession(engine, guard="off", checkouts=CHECKOUTS) as session:
        session.add_all([Order(id=1), Order(id=2)])
        session.commit()
        session.check_out(Order, 1, "ann", note="a long note\nof two lines")
        session.commit()
    return engine


def invoke(database: Database, *words: str, answer: str = "") -> tuple[int, str]:
    command, *others = words
    options = ["--url", database.url, "--table", TABLE]
    result = CliRunner().invoke(
        app, [command, *options, *others], catch_exceptions=False, input=answer
    )
    return result.exit_code, result.output


def test_the_list(database: Database, engine: sa.Engine) -> None:
    status, output = invoke(database, "checkouts")
    assert status == 0
    assert "co_orders 1" in output
    assert "a long note\\nof" in output.replace("\n", " ").replace("  ", " ") or "\\n" in output
    expire(engine)
    status, output = invoke(database, "checkouts", "--json", "--owner", "ann")
    (one,) = json.loads(output)
    assert {name: one[name] for name in ("table", "ident", "owner", "epoch", "expired")} == {
        "table": "co_orders",
        "ident": "1",
        "owner": "ann",
        "epoch": 1,
        "expired": True,
    }
    assert one["until"].endswith("+00:00")
    assert invoke(database, "checkouts", "--json", "--owner", "bob") == (0, "[]\n")


@pytest.mark.usefixtures("engine")
def test_a_take_over_asks_before(database: Database) -> None:
    words = ("take-over", "--owner", "the operator", ORDER, "1")
    status, output = invoke(database, *words, answer="n\n")
    assert status == 1
    assert "Order 1: ann has it since" in output
    status, output = invoke(database, *words, answer="y\n")
    assert status == 0
    assert "Order 1: the operator has it since" in output
    assert "take it over? [y/N]" in output
    status, output = invoke(database, "take-over", "--yes", "--owner", "x", ORDER, "2")
    assert status == 0
    assert "Order 2: nobody has it checked out" in output


def test_a_check_in_asks_before(database: Database, engine: sa.Engine) -> None:
    assert invoke(database, "check-in", ORDER, "1", answer="n\n")[0] == 1
    status, output = invoke(database, "check-in", ORDER, "1", answer="y\n")
    assert status == 0
    assert "Order 1: checked in" in output
    factory = sessionmaker(engine, class_=LockingSession, checkouts=CHECKOUTS)
    with factory() as session:
        assert session.checkouts(expired=True) == []
    status, output = invoke(database, "check-in", ORDER, "1")
    assert (status, output) == (0, "Order 1: nobody has it checked out\n")


def test_a_check_in_ends_one_that_has_expired(database: Database, engine: sa.Engine) -> None:
    expire(engine)
    status, output = invoke(database, "check-in", "--yes", ORDER, "1")
    assert status == 0
    assert "Order 1: checked in" in output
    with sessionmaker(engine, class_=LockingSession, checkouts=CHECKOUTS)() as session:
        assert session.checkouts(expired=True) == []


@pytest.mark.databases("sqlite")
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("take-over", "--yes", "--owner", "x", ORDER, "7"), "there is no Order with the primary"),
        (("take-over", "--yes", "--owner", "", ORDER, "1"), "the owner must have 1 to 255"),
        (("take-over", "--owner", "x", "--note", "x" * 65_536, ORDER, "1"), "the note 'xx"),
        (("take-over", "--owner", "x", "--minutes", "1e300", ORDER, "1"), "--minutes must be"),
        (("take-over", "--owner", "x", "--minutes", "nan", ORDER, "1"), "--minutes must be"),
        (("take-over", "--owner", "x", "--minutes", "inf", ORDER, "1"), "--minutes must be"),
        (("take-over", "--owner", "x", "--minutes", "-1", ORDER, "1"), "--minutes must be"),
        (("take-over", "--owner", "x", "--minutes", "1e-9", ORDER, "1"), "--minutes must be"),
        (("checkouts", "--table", "sales."), "--table is the name of a table"),
        (("check-in", "--yes", ORDER, "1abc"), "'1abc' is no"),
        (("check-in", "json:JSONDecoder", "1"), "entity must be a mapped class"),
        (("checkouts", "--table", "nothing"), "there is no table nothing"),
    ],
)
def test_what_cannot_be_done(database: Database, words: tuple[str, ...], reported: str) -> None:
    status, output = invoke(database, *words)
    assert status == 2, output
    assert reported in output
    assert output.startswith("sa-doclock: ") or "checked out" in output or "has it" in output


@pytest.mark.parametrize("command", ["checkouts", "waits", "doctor"])
@pytest.mark.parametrize(
    ("url", "reported"),
    [
        ("sqlite:///{path}?timeout=soon", "has options (timeout) that cannot be used"),
        ("sqlite:///{path}?check_same_thread=perhaps", "has options (check_same_thread)"),
        ("sqlite:///{path}?plugin=nothing", "has options (plugin) that cannot be used"),
        ("nothing:///{path}", "knows no database or driver 'nothing'"),
        ("mysql+pymysql://host/shop?read_timeout=soon", "read_timeout"),
    ],
)
def test_a_url_with_wrong_options(tmp_path: Path, command: str, url: str, reported: str) -> None:
    result = CliRunner().invoke(app, [command, "--url", url.format(path=tmp_path / "shop.db")])
    assert result.exit_code == 2, result.output
    assert reported in result.output
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)
