"""``sa-doclock demo``, and the stories that it tells, on every database."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from sa_doclock import LockOptions
from sa_doclock.tools.cli.database import open_database
from sa_doclock.tools.cli.demo import SAME_LINE, TWO_LINES, click_twice, watch_order
from sa_doclock.tools.cli.workload import fresh_tables
from tests.integration.cli.conftest import Process
from tests.support.databases import Database

Run = Callable[..., Process]
both_cases = pytest.mark.parametrize("names", [SAME_LINE, TWO_LINES], ids=["same", "other"])


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    with open_database(database.url, 2) as target, fresh_tables(target.engine):
        yield target.engine


@both_cases
def test_a_double_click_goes_wrong_without_a_lock(engine: Engine, names: tuple[str, str]) -> None:
    clicks = click_twice(engine, LockOptions.None_, names)
    assert not clicks.fine, clicks


@both_cases
def test_a_double_click_is_harmless_with_a_lock(engine: Engine, names: tuple[str, str]) -> None:
    clicks = click_twice(engine, LockOptions.ForUpdate, names)
    assert clicks.fine, clicks
    assert clicks.lines.keys() == {"N0", "N1", *names}


def test_a_shared_read_never_sees_a_wrong_total(engine: Engine) -> None:
    seen = watch_order(engine, LockOptions.ForUpdate, LockOptions.SharedRead, 0.5, lambda *_: None)
    assert seen.wrong == 0
    assert seen.reads > 0
    assert seen.changes > 0


def test_a_writer_that_fails_ends_the_watching(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_doclock.tools.cli.demo._change", lambda *_: 1 / 0)
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        watch_order(engine, LockOptions.None_, LockOptions.None_, 3600, lambda *_: None)
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
