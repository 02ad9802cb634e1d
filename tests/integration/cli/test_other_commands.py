"""``sa-doclock doctor``, ``explain``, ``checkouts``, ``take-over`` and ``check-in``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker
from typer.testing import CliRunner

from sa_doclock import LockingSession, LockOptions, explain_lock
from sa_doclock.errors import DOCS
from sa_doclock.tools.cli.app import app
from sa_doclock.tools.doctor import SEVERITIES
from tests.integration.checkouts.models import CHECKOUTS, TABLE, Base, expire
from tests.integration.checkouts.models import Order as CheckoutsOrder
from tests.integration.cli.conftest import Process
from tests.support.databases import Database
from tests.support.models import Order

pytestmark = pytest.mark.each_value

# --------------------------------------------------------------------------------------------------
# ``sa-doclock doctor``: its report, JSON, exit statuses and limits.

PARTS = "tests.integration.doctor.test_models:Base"


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *words], catch_exceptions=False)
    return result.exit_code, result.output


def test_the_report_has_cures_and_links_and_no_password(database: Database) -> None:
    status, output = invoke("--url", database.url)
    assert status in (0, 2)
    assert f"{database.name} " in output
    assert f"  {DOCS}/doctor.html#" in output
    assert output.splitlines()[-1].endswith(" to know")
    password = sa.make_url(database.url).password
    assert password is None or str(password) not in output


def test_json_is_a_list_of_objects(database: Database) -> None:
    status, output = invoke("--url", database.url, "--json", "--models", PARTS)
    reported = json.loads(output)
    assert reported
    for one in reported:
        assert one.keys() == {"severity", "code", "text", "cure", "link"}
        assert one["severity"] in SEVERITIES
        assert one["link"].endswith(f"#{one['code']}")
    assert "table-missing" in {one["code"] for one in reported}
    assert (status == 2) is ("error" in {one["severity"] for one in reported})


def test_the_exit_status(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    assert invoke("--url", url)[0] == 0  # the journal mode is a warning
    assert invoke("--url", url, "--strict")[0] == 1
    file = tmp_path / "shop.db"
    file.touch()
    assert invoke("--url", f"sqlite:///file:{file}?mode=ro&uri=true")[0] == 2


def test_the_busy_timeout_is_that_of_the_url(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}?timeout="
    assert "sqlite-busy-timeout" in invoke("--url", f"{url}0")[1]
    assert "sqlite-busy-timeout" not in invoke("--url", f"{url}5")[1]


@pytest.mark.parametrize(
    ("models", "reported"),
    [
        ("shop", "'shop' is not package.module:Name"),
        ("no_such_module:Base", "no_such_module cannot be imported"),
        ("sa_doclock:Base", "there is no Base in sa_doclock"),
        ("sa_doclock:document", "--models: base must be a declarative base or a registry"),
    ],
)
def test_models_that_are_none(tmp_path: Path, models: str, reported: str) -> None:
    status, output = invoke("--url", f"sqlite:///{tmp_path / 'shop.db'}", "--models", models)
    assert status == 2
    assert reported in output


# --------------------------------------------------------------------------------------------------
# ``sa-doclock explain``: output for people, output as JSON, and statements it cannot explain.

ORDER = "tests.support.models:Order"


def invoke_explain(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["explain", *words], catch_exceptions=False)
    return result.exit_code, result.output


def test_the_text_is_that_of_the_function(documents: Database) -> None:
    reported = explain_lock(documents.engine(), Order, LockOptions.ForUpdate | LockOptions.NoWait)
    words = ("--url", documents.url, ORDER, "ForUpdate | NoWait")
    assert invoke_explain(*words) == (0, f"{reported}\n")


def test_json(documents: Database) -> None:
    status, output = invoke_explain(
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
        (("tests.support.models:Order", "ForUpdate|SkipLocked"), "there is nothing to skip"),
        (("tests.support.models:ROWS", "ForUpdate"), "there is no ROWS in tests.support.models"),
        (("json:JSONDecoder", "ForUpdate"), "entity must be a mapped class"),
        (("tests.support.models:Order", "SnapshotRead", "--lock-timeout", "1"), "never waits"),
    ],
)
def test_what_cannot_be_explained(
    documents: Database, words: tuple[str, ...], reported: str
) -> None:
    status, output = invoke_explain("--url", documents.url, *words)
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


# --------------------------------------------------------------------------------------------------
# ``sa-doclock checkouts``, ``take-over`` and ``check-in``.

ORDER_CHECKOUTS = "tests.integration.checkouts.models:Order"


@pytest.fixture
def engine(database: Database) -> sa.Engine:
    """Create two orders; Ann has checked out the first."""
    database.create(Base.metadata)
    engine = database.engine()
    with LockingSession(engine, guard="off", checkouts=CHECKOUTS) as session:
        session.add_all([CheckoutsOrder(id=1), CheckoutsOrder(id=2)])
        session.commit()
        session.check_out(CheckoutsOrder, 1, "ann", note="a long note\nof two lines")
        session.commit()
    return engine


def invoke_checkouts(database: Database, *words: str, answer: str = "") -> tuple[int, str]:
    command, *others = words
    options = ["--url", database.url, "--table", TABLE]
    result = CliRunner().invoke(
        app, [command, *options, *others], catch_exceptions=False, input=answer
    )
    return result.exit_code, result.output


def test_the_list(database: Database, engine: sa.Engine) -> None:
    status, output = invoke_checkouts(database, "checkouts")
    assert status == 0
    assert "co_orders 1" in output
    assert "a long note\\nof" in output.replace("\n", " ").replace("  ", " ") or "\\n" in output
    expire(engine)
    status, output = invoke_checkouts(database, "checkouts", "--json", "--owner", "ann")
    (one,) = json.loads(output)
    assert {name: one[name] for name in ("table", "ident", "owner", "epoch", "expired")} == {
        "table": "co_orders",
        "ident": "1",
        "owner": "ann",
        "epoch": 1,
        "expired": True,
    }
    assert one["until"].endswith("+00:00")
    assert invoke_checkouts(database, "checkouts", "--json", "--owner", "bob") == (0, "[]\n")


@pytest.mark.usefixtures("engine")
def test_a_take_over_asks_before(database: Database) -> None:
    words = ("take-over", "--owner", "the operator", ORDER_CHECKOUTS, "1")
    status, output = invoke_checkouts(database, *words, answer="n\n")
    assert status == 1
    assert "Order 1: ann has it since" in output
    status, output = invoke_checkouts(database, *words, answer="y\n")
    assert status == 0
    assert "Order 1: the operator has it since" in output
    assert "take it over? [y/N]" in output
    status, output = invoke_checkouts(
        database, "take-over", "--yes", "--owner", "x", ORDER_CHECKOUTS, "2"
    )
    assert status == 0
    assert "Order 2: nobody has it checked out" in output


def test_a_check_in_asks_before(database: Database, engine: sa.Engine) -> None:
    assert invoke_checkouts(database, "check-in", ORDER_CHECKOUTS, "1", answer="n\n")[0] == 1
    status, output = invoke_checkouts(database, "check-in", ORDER_CHECKOUTS, "1", answer="y\n")
    assert status == 0
    assert "Order 1: checked in" in output
    factory = sessionmaker(engine, class_=LockingSession, checkouts=CHECKOUTS)
    with factory() as session:
        assert session.checkouts(expired=True) == []
    status, output = invoke_checkouts(database, "check-in", ORDER_CHECKOUTS, "1")
    assert (status, output) == (0, "Order 1: nobody has it checked out\n")


def test_a_check_in_ends_one_that_has_expired(database: Database, engine: sa.Engine) -> None:
    expire(engine)
    status, output = invoke_checkouts(database, "check-in", "--yes", ORDER_CHECKOUTS, "1")
    assert status == 0
    assert "Order 1: checked in" in output
    with sessionmaker(engine, class_=LockingSession, checkouts=CHECKOUTS)() as session:
        assert session.checkouts(expired=True) == []


@pytest.mark.databases("sqlite")
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (
            ("take-over", "--yes", "--owner", "x", ORDER_CHECKOUTS, "7"),
            "there is no Order with the primary",
        ),
        (
            ("take-over", "--yes", "--owner", "", ORDER_CHECKOUTS, "1"),
            "the owner must have 1 to 255",
        ),
        (
            ("take-over", "--owner", "x", "--note", "x" * 65_536, ORDER_CHECKOUTS, "1"),
            "the note 'xx",
        ),
        (
            ("take-over", "--owner", "x", "--minutes", "1e300", ORDER_CHECKOUTS, "1"),
            "--minutes must be",
        ),
        (
            ("take-over", "--owner", "x", "--minutes", "nan", ORDER_CHECKOUTS, "1"),
            "--minutes must be",
        ),
        (
            ("take-over", "--owner", "x", "--minutes", "inf", ORDER_CHECKOUTS, "1"),
            "--minutes must be",
        ),
        (
            ("take-over", "--owner", "x", "--minutes", "-1", ORDER_CHECKOUTS, "1"),
            "--minutes must be",
        ),
        (
            ("take-over", "--owner", "x", "--minutes", "1e-9", ORDER_CHECKOUTS, "1"),
            "--minutes must be",
        ),
        (("checkouts", "--table", "sales."), "--table is the name of a table"),
        (("check-in", "--yes", ORDER_CHECKOUTS, "1abc"), "'1abc' is no"),
        (("check-in", "json:JSONDecoder", "1"), "entity must be a mapped class"),
        (("checkouts", "--table", "nothing"), "there is no table nothing"),
    ],
)
def test_what_cannot_be_done(database: Database, words: tuple[str, ...], reported: str) -> None:
    status, output = invoke_checkouts(database, *words)
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
