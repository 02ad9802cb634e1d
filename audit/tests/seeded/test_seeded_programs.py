"""Every wrong program gets its finding, and no right program gets an error."""

from __future__ import annotations

import asyncio
import gc
import inspect
import linecache
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import ModuleType
from typing import Any, Final

import pytest
import tenacity
from sqlalchemy import Connection, Engine, Select, delete, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from doclock_audit.findings import CODES
from doclock_audit.rules import LostUpdate
from doclock_audit.watched import Watched
from lab.running.kept import KeptTables
from sa_doclock.testing import Audit, AuditFinding, audit, explore
from tests.integration.asyncio.drivers import drivers_of, url_for
from tests.support.databases import Database

from . import models, right, wrong
from .models import Article, Base, Booking, Order, fill

pytestmark = pytest.mark.own_logic

Program = Callable[..., None]

#: MariaDB finds conflicts at its default level: innodb_snapshot_isolation.
_LEVEL = {name: {"isolation_level": "READ COMMITTED"} for name in ("mysql", "mariadb")}


#: Findings that depend on the purpose of the program.
_POSSIBLE: Mapping[Program, AbstractSet[str]] = {
    right.a_form_that_replaces_what_was_there: {"lost-update"},
    right.a_log_whose_rows_have_no_sum: {"detail-without-header"},
    right.refreshed_in_part_by_the_lock: {"stale-after-lock"},  # on the other columns
    **dict.fromkeys(
        (
            *(right.a_person_who_is_active_no_more, right.a_phone_that_replaces_another),
            *(right.a_phone_of_a_variable, right.a_password_only_if_it_differs),
            *(right.a_form_that_keeps_what_it_does_not_have, right.a_form_whose_field_is_called_so),
            *(right.found_by_what_is_replaced, right.merged_with_a_new_value),
            *(right.another_column_by_text, right.locked_by_a_cursor_of_the_driver),
        ),
        frozenset({"lost-update"}),
    ),
}


#: The first statement writes: it locks an SQLite file before reading it.
_BEHIND_A_WRITE: Final = (
    *(wrong.max_plus_one_by_the_insert, wrong.max_plus_one_by_a_value_of_an_object),
    *(wrong.max_plus_one_by_a_text_that_inserts, wrong.check_then_insert_where_not_exists),
    wrong.capacity_by_the_insert,
)


def programs(module: ModuleType) -> list[Program]:
    found = inspect.getmembers(module, inspect.isfunction)
    return [one for name, one in found if one.__module__ == module.__name__ and name[0] != "_"]


def fill_tables(connection: Connection) -> None:
    with Session(connection) as session:
        fill(session)


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptTables]:
    tables = KeptTables(Base.metadata, fill_tables)
    yield tables
    tables.close()


@pytest.fixture
def engine(database: Database, kept: KeptTables) -> Engine:
    kept.put_rows(database)
    return database.engine(**_LEVEL.get(database.name, {}))


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make a second pass at each call, and only then: a busy machine must not look like a long hold."""
    passed = [0.0]

    def later() -> None:
        passed[0] += 1

    monkeypatch.setattr(time, "perf_counter", lambda: passed[0])
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
    if program is wrong.max_plus_one_by_a_value_of_an_object and database.name == "mysql":
        pytest.skip("MySQL does not read the table of an INSERT in a subquery")
    found = run(program, engine, wait)
    of_program = [one for one in found.findings if one.code == code_of(program)]
    assert of_program, found.report()
    certain = database.name != "sqlite" or program not in _BEHIND_A_WRITE
    certain = certain and program is not wrong.check_then_insert_after_an_update_of_no_row
    assert {one.certain for one in of_program} == {certain}, found.report()
    places = {site.rpartition(":")[0] for one in of_program for site in one.sites}
    assert places <= {wrong.__file__, models.__file__}
    others = {one.code for one in found.findings if one.severity == "error"} - {code_of(program)}
    assert others <= dropped(database), found.report()


#: Each returns 1 if the two programs excluded each other.
_PROOFS: Final = (
    (wrong.max_plus_one_by_the_insert, select(func.count()).where(Booking.number == 2)),
    (wrong.check_then_insert_where_not_exists, select(func.count()).where(Booking.person == "ann")),
    (wrong.capacity_by_the_insert, select(func.count()).where(Booking.person == "ann")),
)


@pytest.mark.parametrize(("program", "number"), _PROOFS, ids=[one.__name__ for one, _ in _PROOFS])
def test_a_statement_that_reads_and_inserts_is_a_race_but_on_sqlite(
    program: Program, number: Select[Any], engine: Engine, database: Database
) -> None:
    def before() -> None:
        with Session(engine) as session:
            session.execute(delete(Booking))
            session.add(Booking(course_id=1, number=1))
            session.commit()

    def is_one() -> bool:
        with Session(engine) as session:
            return bool(session.scalar(number) == 1)

    found = explore(
        lambda: program(engine), lambda: program(engine), before=before, invariant=is_one
    )
    assert bool(found.failures) == (database.name != "sqlite"), found


def dropped(database: Database) -> set[str]:
    """SQLite has no row locks: FOR UPDATE has no effect there, which is an error."""
    return {"lock-without-effect"} if database.name == "sqlite" else set()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Event:
    """An event that is set once the audit has seen a transaction wait under its line."""
    found = Event()
    note = Watched.note_waiting

    def note_and_tell(watched: Watched, seconds: float) -> None:
        note(watched, seconds)
        waiting = (one.transaction.waiting for one in watched.sessions.values())
        places = [one.place for one in waiting if one is not None and one.place]
        if any("charge()" in linecache.getline(*place) for place in places):
            found.set()

    monkeypatch.setattr(Watched, "note_waiting", note_and_tell)
    return found


@pytest.mark.databases("sqlite", "postgresql")
def test_the_line_under_which_a_transaction_waits(engine: Engine, seen: Event) -> None:
    with audit(hold_limit=0.02) as found:
        wrong._idle_transaction_while_a_card_is_charged(engine, seen.wait)  # the caller
    (finding,) = found.findings
    assert (finding.code, finding.severity) == ("idle-transaction", "warning")
    assert finding.sites == (f"{wrong.__file__}:{line_of('charge()', wrong, 1)}",)
    # The caller of the test, such as a script that runs pytest, does not belong to the program.
    assert finding.callers == (f"{__file__}:{line_of('# the caller', sys.modules[__name__])}",)


@pytest.mark.databases("sqlite", "postgresql")
def test_the_line_under_which_a_transaction_waits_with_a_lock(engine: Engine, seen: Event) -> None:
    with audit(hold_limit=0.02) as found:
        wrong.long_hold_while_a_card_is_charged(engine, seen.wait)
    (finding,) = (one for one in found.findings if one.code == "long-hold")
    assert finding.sites[1:] == (f"{wrong.__file__}:{line_of('charge()', wrong)}",)


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.usefixtures("engine")
def test_the_line_that_awaits_in_a_transaction(database: Database, seen: Event) -> None:
    async def charge() -> None:
        await asyncio.to_thread(seen.wait)  # charge() waits

    async def pay() -> None:
        asynchronous = create_async_engine(url_for(database, drivers_of(database.column)[0]))
        async with AsyncSession(asynchronous) as session:
            await session.get_one(Order, 1)
            await charge()
        await asynchronous.dispose()

    with audit(hold_limit=0.02) as found:
        asyncio.run(pay())
    (finding,) = (one for one in found.findings if one.code == "idle-transaction")
    assert finding.sites == (f"{__file__}:{line_of('# charge() waits', sys.modules[__name__])}",)


def line_of(text: str, module: ModuleType, position: int = 0) -> int:
    lines = inspect.getsource(module).splitlines()
    return [number for number, line in enumerate(lines, 1) if text in line][position]


@pytest.mark.parametrize("program", programs(right), ids=lambda one: one.__name__)
def test_a_right_program_has_no_error(
    program: Program, engine: Engine, database: Database, wait: Callable[[], None]
) -> None:
    if program is right.serializable and database.name == "sqlite":
        pytest.skip("the driver begins no transaction for a SELECT")
    found = run(program, engine, wait)
    expected = dropped(database) | _POSSIBLE.get(program, frozenset())
    assert {one.code for one in found.findings} <= expected, found.report()
    errors = {one.code for one in found.findings if one.severity == "error"}
    assert errors <= dropped(database), found.report()


def besides_holds(found: Audit) -> list[AuditFinding]:
    """Return the findings that do not depend on the speed of the machine."""
    return [one for one in found.findings if one.code != "long-hold"]


@pytest.mark.databases("postgresql", "mariadb")
def test_a_level_that_finds_conflicts_needs_no_lock(engine: Engine, database: Database) -> None:
    repeatable = engine.execution_options(isolation_level="REPEATABLE READ")
    with audit() as found:
        wrong.lost_update_of_a_counter(repeatable)
    version = repeatable.dialect.server_version_info
    assert version is not None
    detects = database.name == "postgresql" or version >= (11, 6, 2)
    codes = [one.code for one in besides_holds(found)]
    assert codes == ([] if detects else ["lost-update"])


def test_nothing_is_kept_of_what_has_ended(engine: Engine) -> None:
    with audit() as found:
        for program in (wrong.lost_update_of_a_counter, wrong.lost_update_by_core):
            program(engine)
        gc.collect()
        watched = found._watched
        kept = (watched.reads, watched.assigned, watched.sessions, watched._connections)
        assert [len(one) for one in kept] == [0, 0, 0, 0]
        assert watched.transactions >= 2


def test_a_program_is_audited_in_its_threads(engine: Engine) -> None:
    with audit() as found, ThreadPoolExecutor(4) as threads:
        for _ in range(8):
            threads.submit(right.locked_when_it_is_read, engine)
        threads.submit(wrong.lost_update_of_a_counter, engine).result()
    assert found.failures == (0, "")
    assert {one.code for one in found.findings} >= {"lost-update"}


def test_after_the_block_nothing_is_watched(engine: Engine) -> None:
    with audit() as found:
        pass
    wrong.lost_update_of_a_counter(engine)
    assert (found.statements, found.findings) == (0, [])


def test_what_is_rolled_back_is_possible_at_most(engine: Engine) -> None:
    with audit() as found, Session(engine) as session:
        session.get_one(Article, 1).views += 1
        session.flush()
        session.rollback()
    assert [(one.code, one.certain) for one in besides_holds(found)] == [("lost-update", False)]


def test_an_error_of_the_audit_is_none_of_the_program(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LostUpdate, "wrote", lambda *_: 1 / 0)
    with audit() as found:
        wrong.lost_update_of_a_counter(engine)
    times, first = found.failures
    assert times == 1
    assert "ZeroDivisionError" in first


def test_an_error_of_the_program_comes_out(engine: Engine) -> None:
    query = select(Article).where(Article.id == 1).with_for_update()
    with audit(), Session(engine) as session, pytest.raises(DBAPIError):
        session.scalars(query.where(text("no_such_column = 1"))).all()


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.usefixtures("engine")
def test_an_asynchronous_session(database: Database) -> None:
    async def add(ident: int) -> None:
        asynchronous = create_async_engine(url_for(database, drivers_of(database.column)[0]))
        async with AsyncSession(asynchronous) as session:
            article = await session.get_one(Article, ident)
            article.views += 1
            await session.commit()
        await asynchronous.dispose()

    with audit() as found:
        asyncio.run(add(1))
    (finding,) = besides_holds(found)
    assert (finding.code, finding.certain) == ("lost-update", True)
    assert {site.rpartition(":")[0] for site in finding.sites} == {__file__}
    assert len(finding.sites) == 3


def test_the_lines_of_installed_libraries_are_none_of_the_program(engine: Engine) -> None:
    with audit() as found, Session(engine) as session:
        article = session.get_one(Article, 1)
        article.views += 1
        tenacity.Retrying()(session.commit)
    (finding,) = besides_holds(found)
    assert {site.rpartition(":")[0] for site in finding.sites} == {__file__}
    assert len(finding.sites) == 3
