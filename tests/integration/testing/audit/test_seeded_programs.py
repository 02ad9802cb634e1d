"""Every wrong program has its finding, and no right one has an error."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from types import ModuleType

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_doclock.testing import Audit, audit
from sa_doclock.testing.audit.finding import CODES
from tests.support.databases import Database

from . import models, right, wrong
from .models import Base, fill

Program = Callable[..., None]


def programs(module: ModuleType) -> list[Program]:
    found = inspect.getmembers(module, inspect.isfunction)
    return [one for name, one in found if one.__module__ == module.__name__ and name[0] != "_"]


@pytest.fixture
def engine(database: Database) -> Engine:
    database.create(Base.metadata)
    engine = database.engine()
    with Session(engine) as session:
        fill(session)
    return engine


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A second passes when it is called."""
    passed = [0.0]
    clock = time.perf_counter

    def later() -> None:
        passed[0] += 1

    monkeypatch.setattr(time, "perf_counter", lambda: clock() + passed[0])
    return later


def code_of(program: Program) -> str:
    name = program.__name__.replace("_", "-")
    return next(code for code in CODES if name.startswith(code))


def run(program: Program, engine: Engine, wait: Callable[[], None]) -> Audit:
    arguments = (engine, wait)[: len(inspect.signature(program).parameters)]
    with audit() as found:
        program(*arguments)
    assert found.failures == (0, "")
    return found


@pytest.mark.parametrize("program", programs(wrong), ids=lambda one: one.__name__)
def test_a_wrong_program_has_its_finding(
    program: Program, engine: Engine, database: Database, wait: Callable[[], None]
) -> None:
    found = run(program, engine, wait)
    of_program = [one for one in found.findings if one.code == code_of(program)]
    assert of_program, found.report()
    assert all(one.certain for one in of_program), found.report()
    places = {site.rpartition(":")[0] for one in of_program for site in one.sites}
    assert places <= {wrong.__file__, models.__file__}
    others = {one.code for one in found.findings if one.severity == "error"} - {code_of(program)}
    assert others <= dropped(database), found.report()


def dropped(database: Database) -> set[str]:
    """SQLite has no row locks: there, FOR UPDATE is without effect, and that is an error."""
    return {"lock-without-effect"} if database.name == "sqlite" else set()


@pytest.mark.parametrize("program", programs(right), ids=lambda one: one.__name__)
def test_a_right_program_has_no_error(
    program: Program, engine: Engine, database: Database, wait: Callable[[], None]
) -> None:
    if program is right.serializable and database.name == "sqlite":
        pytest.skip("the driver begins no transaction for a SELECT")
    found = run(program, engine, wait)
    errors = {one.code for one in found.findings if one.severity == "error"}
    assert errors <= dropped(database), found.report()
