"""Budgets for the calls of our own functions during a warm lock: calls, files and depth.

The budgets are ceilings for readers, the same on every machine.  A failure prints the calls.

The longest ways consist of these calls:

A later lock of a transaction on PostgreSQL (the goal was 35 calls in 10 files):

- 5: the method and its arguments: the lock with its timeout, the mapper, the key, the target;
- 4: are the earlier locks still held, according to the session, SQLAlchemy and the driver;
- 3: ``acquire()``, its part that can be retried, and the object of the call, which errors use;
- 2: is the row held already, and may it be locked;
- 4: prepare the transaction: its database, the plan, its current state, the driver's AUTOCOMMIT;
- 2: find the row, and 3: check whether the cached answers about its table still hold;
- 6: send it: the lock for this level, the statement, and its execution;
- 2: SQLAlchemy's calls of our listeners for a statement;
- 3: record that the driver began a transaction, and the lock in the ledger; 1 ends the call.

No kind of call can go.  The calls of each kind are steps to other objects: one for each kind of
lock or database, or a file with a single subject.

A lock with a ``lock_timeout`` on PostgreSQL with psycopg (the goal was 62 calls): 39 as without a
timeout, of which 2 find the row (``_note_database``), because class and key do not distinguish two
tenants, and 3 check the cached answers about its table (``table_answers.py``).  3 limit the wait:
``_blocks``, and ``WaitLimit``'s ``around()`` and ``send()``.  20 send BEGIN, the limit, the lock
and the end of the limit in one round trip:

- 2: make the block, and 4: put it on the connection and remove it;
- 7: the cursor in place of the driver's: it is created, creates the driver's, and serves
  ``execute``, ``description``, ``fetchall`` and ``close``;
- 2: put the limit around the lock;
- 5: send it: two functions, one that makes the BEGIN, and one that fetches the answers in psycopg's
  place, called again after a wait.  That is the depth of 13: SQLAlchemy executes the statement (8),
  the cursor passes it to the block (10), which sends it (11), ends the pipeline (12) and
  fetches (13).

A subclass of psycopg's cursor would save 4 of the 7.  But the program chooses that class, and the
result of an early read replaces a cursor.

``save_changes()`` of a declared document with a changed header and detail:

- 3: its own;
- 13: SQLAlchemy's calls of our listeners: 6 of the session, 4 for two rows, 2 for two statements, 1
  of the pool;
- 8: two checks that the locks are still held, before the flush and before COMMIT.  Both are needed:
  the flush and the program's listeners run between them and may end the transaction, and
  ``commit()`` may come alone;
- 12: the guard: 4 group the rows by class, 4 ask each class for the headers of its rows, and 2 ask
  for the one document; warnings are reset before, and everything is forgotten at the end;
- 3: the guard's memory of the transaction, looked up once;
- 7: end the transaction, including its condition, and 4 notify the parts of the session.

A whole operation on SQLite (the goal was 80 calls): a new session locks a row, executes a SELECT,
saves and is closed.  The class is not declared.

- 13: the methods that the program calls, and their arguments;
- 13: create objects: those of the session, the transaction, its connection and the call;
- 14: SQLAlchemy's calls of our listeners: 8 of the session, 5 for statements, 1 of the pool;
- 13: open the transaction at the lock's level, with BEGIN IMMEDIATE;
- 15: take the lock: 3 for the sequence, 2 ask whether it may be taken, 6 send it, 4 record it;
- 2: find the row, as above;
- 8: the two checks that the locks are still held, as above; 2: the guard and versions;
- 9: end the transaction: register a ROLLBACK in case COMMIT is never sent, restore the connection.

Removing another call would remove an object, a check, or a function with a second caller.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from sa_doclock.core.session import context_of
from tests.integration.locking.call_counts import INDENT, calls_of
from tests.support.databases import Database
from tests.support.models import Order

pytestmark = pytest.mark.quick


class Budget(NamedTuple):
    calls: int
    files: int
    depth: int


BUDGETS = {
    "sqlite": {
        "idle": Budget(2, 2, 2),
        "begin": Budget(12, 10, 6),
        "lock": Budget(40, 14, 10),
        "save": Budget(30, 12, 6),
        "operation": Budget(89, 27, 11),
    },
    "postgresql": {
        "declared lock": Budget(39, 16, 9),
        "declared later lock": Budget(35, 16, 8),
        # At the end a pipeline waits for the server once or twice, each time in a call.
        "declared lock_in_time": Budget(62, 20, 13),
        "declared lock_by_scalars": Budget(77, 20, 11),
        "declared save": Budget(49, 17, 6),
    },
}


@pytest.mark.databases(*BUDGETS)
def test_the_way_of_a_lock_keeps_its_budgets(database: Database) -> None:
    budgets = BUDGETS.get(database.column)
    if budgets is None:
        pytest.skip("counted on other columns")
    url = [database.url] if database.name == "postgresql" else []
    command = [sys.executable, "-m", "tests.integration.locking.call_counts", *url]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    counted: dict[str, list[str]] = json.loads(run.stdout)
    over = {way: counted[way] for way in budgets if _exceeds(_count(counted[way]), budgets[way])}
    assert not over, _calls_of_each(over)


def _count(calls: list[str]) -> Budget:
    files = {call.strip().partition(":")[0] for call in calls}
    depth = max((len(call) - len(call.lstrip())) // len(INDENT) + 1 for call in calls)
    return Budget(len(calls), len(files), depth)


def _exceeds(counted: Budget, budget: Budget) -> bool:
    return any(number > most for number, most in zip(counted, budget, strict=True))


def _calls_of_each(over: dict[str, list[str]]) -> str:
    return "\n\n".join(
        "\n".join([f"{way}: {_count(calls)}", *calls]) for way, calls in over.items()
    )


def test_what_is_counted() -> None:
    assert calls_of(lambda: sorted([2, 1])) == []  # Python's own
    assert _count(["a.py:one", f"{INDENT}b.py:two", f"{INDENT}a.py:three"]) == (3, 2, 2)


# --------------------------------------------------------------------------------------------------
# What a component remembers about a transaction is dropped with that transaction, never cleared.


def remembered(session: LockingSession) -> dict[str, dict[str, str]]:
    """Return each part's state beside the transaction, as text: a grown container differs."""
    return {
        type(part).__name__: {name: repr(value) for name, value in vars(part).items()}
        for part in context_of(session).parts.all
    }


def test_no_part_keeps_what_is_of_a_transaction(engine: sa.Engine) -> None:
    options: dict[str, Any] = {"hold_limit": 60, "commit_outcome": True, "priority": "batch"}
    options["pipeline"] = engine.driver == "psycopg"
    called: list[str] = []
    with LockingSession(engine, **options) as session:
        session.on_commit(lambda: called.append("rolled back before a transaction had begun"))
        session.rollback()
        before = remembered(session)
        assert {"HoldLimit", "AfterCommit"} <= before.keys()
        session.on_commit(lambda: called.append("committed"))
        order = session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        order.total += 1
        with session.begin_nested():
            session.on_commit(lambda: called.append("committed in a savepoint"))
            session.flush()
        assert remembered(session) == before
        session.commit()
        assert called == ["committed", "committed in a savepoint"]
        assert remembered(session) == before
