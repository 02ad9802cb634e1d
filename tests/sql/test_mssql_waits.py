"""SQL Server: the questions that find out who holds a row, and who waits for whom.

The server is scripted: these tests do not prove that its views answer so.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from sa_doclock import LockingSession, LockNotAvailable, LockNotSupported, LockOptions, lock_waits
from tests.sql.driver import Script
from tests.sql.golden import FOLDER
from tests.sql.models import Order
from tests.sql.native import FORMS, TEXTS, odbc18
from tests.sql.servers import Error, pymssql, pyodbc, serving

Scripted = tuple[Engine, Script]
GOLDEN = FOLDER / "waits" / "mssql.sql"
HEAD = """\
-- mssql: what is asked, over a connection of its own, after a lock was not granted to a session made
-- with diagnose=True, and by lock_waits().
"""
NO_WAIT = LockOptions.ForUpdate | LockOptions.NoWait

ACTS: dict[str, Callable[[LockingSession], object]] = {
    "get_entity()": lambda session: session.get_entity(Order, 1, NO_WAIT),
    "a set": lambda session: session.scalars(session.entity_set(Order, NO_WAIT)),
}


def refused(
    engine: Engine, script: Script, act: Callable[[LockingSession], object]
) -> LockNotAvailable:
    script.failures.append(("UPDLOCK", odbc18(1222)))
    script.values |= {"text)": "UPDATE shop_order"}  # COALESCE(running.text, latest.text)
    with (
        LockingSession(engine, diagnose=True) as session,
        pytest.raises(LockNotAvailable) as caught,
    ):
        act(session)
    return caught.value


def asked(script: Script) -> list[str]:
    """Return the statements, without the lock and the greeting of a new connection."""
    marks = ("sys.dm_", "LOCK_TIMEOUT 500")
    handshake = "sys.system_views", "transaction_isolation_level"
    return [
        sql
        for sql in script.sent
        if any(mark in sql for mark in marks) and not any(mark in sql for mark in handshake)
    ]


def golden() -> str:
    """Return the contents of the golden file."""
    parts = [HEAD]
    for title, act in ACTS.items():
        with serving("mssql") as (engine, script):
            refused(engine, script, act)
            parts.append(f"-- {title}\n" + "\n".join(asked(script)) + "\n")
    with serving("mssql") as (engine, script):
        lock_waits(engine)
        parts.append("-- lock_waits()\n" + "\n".join(asked(script)) + "\n")
    return "\n".join(parts)


def test_the_text_is_the_golden_one() -> None:
    assert golden() == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("driver", [pyodbc, pymssql])
@pytest.mark.parametrize("sure", [False, True])
def test_the_holder_is_reported(driver: Callable[[Script], Engine], sure: bool) -> None:
    with serving("mssql", driver) as (engine, script):
        script.values["resource_type = 'OBJECT' THEN 1 ELSE 0 END)"] = int(sure)
        script.values |= {"login_name": "app", "program_name": "billing", "status": "sleeping"}
        script.values["host_name"] = "till-7"
        error = refused(engine, script, ACTS["get_entity()"])
    (holder,) = error.blockers
    assert (holder.connection_id, holder.user, holder.application) == (1, "app", "billing")
    assert (holder.state, holder.transaction_seconds) == ("idle in transaction", 1.0)
    assert (holder.statement, holder.certain) == ("UPDATE shop_order", sure)
    assert holder.host == "till-7"


def test_a_wait_is_reported(scripted: Scripted) -> None:
    (wait,) = lock_waits(scripted[0])
    assert (wait.waiter.connection_id, wait.blocker.connection_id, wait.seconds) == (1, 1, 1.0)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_an_account_that_may_not_know_learns_what_it_lacks(
    scripted: Scripted, form: Callable[[int], Error]
) -> None:
    engine, script = scripted
    script.failures.append(("sys.dm_os_waiting_tasks", form(300)))
    with pytest.raises(LockNotSupported, match="mssql: the account needs GRANT VIEW SERVER STATE"):
        lock_waits(engine)
    script.failures.append(("sys.dm_tran_locks", form(300)))
    assert refused(engine, script, ACTS["get_entity()"]).blockers == ()


def test_another_error_is_sqlalchemys_own(scripted: Scripted) -> None:
    engine, script = scripted
    assert 2627 in TEXTS
    script.failures.append(("sys.dm_os_waiting_tasks", odbc18(2627)))
    with pytest.raises(DBAPIError, match="2627"):
        lock_waits(engine)
