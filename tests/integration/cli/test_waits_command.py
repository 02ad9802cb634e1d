"""``sa-doclock waits`` on each server: the tree, the JSON, the filters and the exit status."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from rich.console import Console
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool
from typer.testing import CliRunner

from sa_doclock import LockingSession, LockOptions, LockWait, lock_waits
from sa_doclock.tools.cli.app import app
from tests.integration.locking.steps import locks, roll_back
from tests.integration.monitoring.steps import ON_SERVERS, ids, refused, up_to_date
from tests.support.actors import PATIENCE, Actor
from tests.support.databases import Database
from tests.support.models import Order
from tests.support.waits import wait_until, wait_until_blocked

Session = Actor[LockingSession]
YEAR = "31536000"


def invoke(database: Database, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(
        app, ["waits", "--url", database.url, *words], catch_exceptions=False
    )
    return result.exit_code, result.output


@pytest.fixture
def waiting(alice: Session, bob: Session) -> Iterator[tuple[int, int]]:
    """Make bob wait for alice; return both connection ids, the waiter's first."""
    alice.does(locks(Order, 1))
    queued = bob.starts(locks(Order, 1))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    yield bob.connection_id(), alice.connection_id()
    alice.does(roll_back)
    queued.result()
    bob.does(roll_back)


@ON_SERVERS
def test_the_holder_is_above_its_waiter(database: Database, waiting: tuple[int, int]) -> None:
    bob, alice = waiting
    status, output = up_to_date(
        database, lambda: invoke(database), lambda found: f"connection {bob} " in found[1]
    )
    assert status == 0
    summary, _, tree = output.partition("\n\n")
    assert summary.startswith(
        f"1 connection waits for lk_order 1, held by {alice}, idle in transaction"
    )
    assert tree.index(f"connection {alice} (") < tree.index("lk_order 1, ")
    assert tree.index("lk_order 1, ") < tree.index(f"connection {bob} (")
    assert "idle in transaction" in output
    assert "FOR UPDATE" in output
    password = sa.make_url(database.url).password
    assert password is None or str(password) not in output


@ON_SERVERS
def test_json_and_alarm(database: Database, waiting: tuple[int, int]) -> None:
    bob, alice = waiting

    def ours(output: str) -> list[dict[str, Any]]:
        return [one for one in json.loads(output) if one["waiter"]["connection_id"] == bob]

    status, output = up_to_date(
        database,
        lambda: invoke(database, "--json", "--alarm", "0"),
        lambda found: ours(found[1]) and found[0],  # MariaDB counts whole seconds
    )
    (reported,) = ours(output)
    assert status == 1
    assert reported["blocker"]["connection_id"] == alice
    assert reported["root_blocker"]["state"] == "idle in transaction"
    assert (reported["table"], reported["key"]) == ("lk_order", "1")
    assert reported["seconds"] > 0
    # The alarm also counts waits that the filter leaves out.
    status, output = invoke(database, "--json", "--alarm", "0", "--longer-than", YEAR)
    assert (status, json.loads(output)) == (1, [])
    assert invoke(database, "--alarm", YEAR)[0] == 0


@ON_SERVERS
def test_nobody_waits(database: Database) -> None:
    status, output = invoke(database, "--alarm", YEAR, "--longer-than", YEAR)
    assert (status, output) == (0, "no connection waits for a lock\n")


@ON_SERVERS
def test_watch_goes_on_until_ctrl_c(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("sa_doclock.tools.cli.waits.time.sleep", sleep)
    words = ("--watch", "--every", "0.5", "--json", "--longer-than", YEAR)
    assert invoke(database, *words) == (0, "[]\n[]\n")
    assert slept == [0.5, 0.5]


@pytest.mark.databases("postgresql")
def test_watch_renews_the_tree_in_place_on_a_terminal(
    database: Database, waiting: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=300, height=50)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("sa_doclock.tools.cli.waits.results", lambda: terminal)
    monkeypatch.setattr("sa_doclock.tools.cli.waits.time.sleep", sleep)
    assert invoke(database, "--watch")[0] == 0
    assert isinstance(terminal.file, io.StringIO)
    shown = terminal.file.getvalue()
    assert shown.count(f"connection {waiting[1]} (") >= 2
    assert "\x1b[1A" in shown  # moves up, over the earlier output


@ON_SERVERS
def test_watch_ends_with_the_alarm(
    database: Database, waiting: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = threading.Event().wait
    monkeypatch.setattr("sa_doclock.tools.cli.waits.time.sleep", lambda _: pause(0.2))
    status, output = invoke(database, "--watch", "--alarm", "0")
    assert status == 1
    assert f"connection {waiting[0]} (" in output


@pytest.mark.databases("sqlite")
def test_sqlite_cannot_be_asked(database: Database) -> None:
    status, output = invoke(database)
    assert (status, output) == (
        2,
        "sa-doclock: lock_waits() is not supported on sqlite: it has no server that lists lock waits\n",
    )


@pytest.mark.databases("postgresql")
def test_the_alarm_is_decided_before_anything_is_drawn(
    database: Database, waiting: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert waiting
    found: list[LockWait] = []

    def lock_waits_of(engine: sa.Engine) -> list[LockWait]:
        found[:] = [replace(wait, seconds=1) for wait in lock_waits(engine)]
        return found

    def picture_of(*_: object, **__: object) -> str:
        found.clear()  # as in a snapshot that took long: the wait is over by now
        return "a picture"

    monkeypatch.setattr("sa_doclock.tools.cli.waits.lock_waits", lock_waits_of)
    monkeypatch.setattr("sa_doclock.tools.cli.waits.picture_of", picture_of)
    assert invoke(database, "--alarm", "0") == (1, "a picture\n")


@ON_SERVERS
def test_a_failure_of_the_server_is_no_alarm(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise sa.exc.OperationalError("SELECT 1", {}, Exception("the server is gone"))

    monkeypatch.setattr("sa_doclock.tools.cli.waits.lock_waits", fail)
    status, output = invoke(database)
    assert status == 2
    assert "the server is gone" in output


def test_a_url_is_needed() -> None:
    result = CliRunner().invoke(app, ["waits"], env={"SA_DOCLOCK_URL": ""})
    assert result.exit_code == 2


# --------------------------------------------------------------------------------------------------
# Many waiters for one row, and a deadlock before the server ends it: questions and output.

MANY = 200

_COUNT_WAITERS = {
    "postgresql": "SELECT COUNT(DISTINCT pid) FROM pg_locks WHERE NOT granted",
    "mysql": "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
    "mariadb": "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


def invoke_storm(database: Database, *words: str) -> tuple[int, str]:
    screen = {"COLUMNS": "80", "LINES": "24"}
    result = CliRunner(env=screen).invoke(
        app, ["waits", "--url", database.url, *words], catch_exceptions=False
    )
    return result.exit_code, result.output


@pytest.fixture
def holder(
    database: Database, alice: Session, make_engine: Callable[..., sa.Engine]
) -> Iterator[int]:
    """Make alice hold an order, and many wait for it: writers, with some readers between them.

    Yields the id of alice's connection.
    """
    alice.does(locks(Order, 1))
    engine = make_engine(poolclass=NullPool)

    def wait(number: int) -> None:
        lock = LockOptions.ForUpdate if number % 4 else LockOptions.SharedRead
        with LockingSession(engine) as session:
            session.get_entity(Order, 1, lock)

    def all_wait() -> bool:
        with database.observer().connect() as connection:
            return connection.exec_driver_sql(_COUNT_WAITERS[database.name]).scalar() == MANY

    with ThreadPoolExecutor(MANY) as threads:
        queued: list[Future[None]] = [threads.submit(wait, number) for number in range(MANY)]
        try:
            wait_until(lambda: all_wait() or any(one.done() for one in queued), poll_seconds=0.12)
            yield alice.connection_id()
        finally:
            alice.does(roll_back)
        for one in queued:
            one.result(PATIENCE)


@pytest.mark.slow
@ON_SERVERS
def test_many_wait_for_one(database: Database, holder: int, engine: sa.Engine) -> None:
    """All three checks share a crowd: gathering it takes longer than the checks."""
    what_is_printed(database, holder, engine)
    the_server_is_asked_in_few_statements(engine)
    the_error_names_the_one_holder(holder, engine)


def what_is_printed(database: Database, holder: int, engine: sa.Engine) -> None:
    def waiters() -> set[int]:
        return {wait.waiter.connection_id for wait in lock_waits(engine)}

    assert len(up_to_date(database, waiters, lambda found: len(found) == MANY)) == MANY
    found = lock_waits(engine)
    assert {wait.root_blocker.connection_id for wait in found} == {holder}
    assert {(wait.table, wait.key) for wait in found} == {("lk_order", "1")}
    # The server lists each waiter with all ahead of it: up to 20,000 pairs for 200 waiters.
    assert len(found) <= 3 * MANY

    status, output = invoke_storm(database)
    assert status == 0
    lines = output.splitlines()
    assert 12 < len(lines) < 24
    assert lines[0].startswith(
        f"{MANY} connections wait for lk_order 1, held by {holder}, idle in "
    )
    numbers = [int(number) for number in re.findall(r"connection (\d+) \(", output)]
    assert numbers[0] == holder
    assert len(set(numbers)) == len(numbers) > 5
    counted = sum(map(int, re.findall(r"and (\d+) more waits? for it", output)))
    assert len(numbers) + counted == 1 + MANY

    _, output = invoke_storm(database, "--all")
    numbers = [int(number) for number in re.findall(r"connection (\d+) \(", output)]
    assert sorted(numbers) == sorted({holder, *(wait.waiter.connection_id for wait in found)})

    status, output = invoke_storm(database, "--json", "--alarm", "0.001")
    reported = json.loads(output)
    assert {one["root_blocker"]["connection_id"] for one in reported} == {holder}
    assert len({one["waiter"]["connection_id"] for one in reported}) == MANY
    assert len(reported) <= 3 * MANY
    assert invoke_storm(database, "--alarm", YEAR)[0] == 0


def the_server_is_asked_in_few_statements(engine: sa.Engine) -> None:
    sent: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        found = lock_waits(engine)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert found
    assert 2 <= len(sent) <= 20, sent


def the_error_names_the_one_holder(holder: int, engine: sa.Engine) -> None:
    with LockingSession(engine, diagnose=True) as session:
        error = refused(session, Order, 1)
    assert [(one.connection_id, one.certain) for one in error.blockers] == [(holder, True)]


@pytest.mark.databases("mysql", "mariadb")
def test_the_limit_of_group_concat_cuts_off_no_connection(
    database: Database, holder: int, make_engine: Callable[..., sa.Engine]
) -> None:
    limit = {"init_command": "SET SESSION group_concat_max_len = 4"}
    engines = make_engine(), make_engine(connect_args=limit)

    def ask() -> list[set[tuple[int, int]]]:
        return [
            {(wait.waiter.connection_id, wait.blocker.connection_id) for wait in lock_waits(engine)}
            for engine in engines
        ]

    asked, limited = up_to_date(database, ask, lambda found: found[0] and found[0] == found[1])
    assert len(asked) > MANY
    assert holder in {blocker for _, blocker in asked}
    assert asked == limited


@pytest.mark.databases("postgresql")
def test_a_deadlock_that_the_server_has_not_ended_yet(
    database: Database, alice: Session, bob: Session, carol: Session
) -> None:
    for actor, ident in ((alice, 1), (bob, 2)):
        actor.does(
            lambda session: session.execute(sa.text("SET LOCAL deadlock_timeout = '5min'")) and None
        )
        actor.does(locks(Order, ident))
    first, second = alice.starts(locks(Order, 2)), bob.starts(locks(Order, 1))
    wait_until_blocked(waiter=alice, holder=bob, step=first)
    wait_until_blocked(waiter=bob, holder=alice, step=second)
    third = carol.starts(locks(Order, 2))
    wait_until_blocked(waiter=carol, holder=alice, step=third)
    (one,), two, (three,) = ids(alice), ids(alice, bob), ids(carol)
    status, output = invoke_storm(database, "--all", "--alarm", YEAR)
    with database.observer().connect() as connection:
        connection.execute(sa.text("SELECT pg_cancel_backend(:pid)"), {"pid": one})
    with pytest.raises(OperationalError):
        first.result()
    alice.does(roll_back)
    for actor, step in ((bob, second), (carol, third)):
        step.result()
        actor.does(roll_back)
    assert status == 0
    summary, _, top, *_ = output.splitlines()
    assert summary.startswith("3 connections wait for lk_order ")
    assert summary.endswith("and 1 other lock, in a circle, which is a deadlock")
    assert {int(number) for number in re.findall(r"connection (\d+) \(", output)} == {*two, three}
    ((again, _),) = re.findall(r"connection (\d+) (again, a circle)", output)
    assert top.startswith(f"connection {again} (")
