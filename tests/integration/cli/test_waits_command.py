"""``sa-doclock waits`` on each server: the tree, the JSON, the filters and the exit status."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from rich.console import Console
from typer.testing import CliRunner

from sa_doclock import LockingSession, LockWait, lock_waits
from sa_doclock.tools.cli.app import app
from tests.integration.locking.steps import locks, roll_back
from tests.integration.monitoring.steps import ON_SERVERS, up_to_date
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Order
from tests.support.waits import wait_until_blocked

Session = Actor[LockingSession]
YEAR = "31536000"


def invoke(database: Database, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(
        app, ["waits", "--url", database.url, *words], catch_exceptions=False
    )
    return result.exit_code, result.output


@pytest.fixture
def waiting(alice: Session, bob: Session) -> Iterator[tuple[int, int]]:
    """Let bob wait for alice; return the ids of both, the waiter's first."""
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
    # The alarm counts what is left out too.
    status, output = invoke(database, "--json", "--alarm", "0", "--longer-than", YEAR)
    assert (status, json.loads(output)) == (1, [])
    assert invoke(database, "--alarm", YEAR)[0] == 0


@ON_SERVERS
def test_nobody_waits(database: Database) -> None:
    status, output = invoke(database, "--alarm", YEAR, "--longer-than", YEAR)
    assert (status, output) == (0, "nobody waits for a lock\n")


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
    assert "\x1b[1A" in shown  # up again, over what was shown before


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
        found.clear()  # as a picture that took long: the wait is over by now
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
