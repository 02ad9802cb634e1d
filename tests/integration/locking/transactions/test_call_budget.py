"""The calls of our own functions on the way of a lock, warm: how many, in how many files, how deep.

They are ceilings for who reads the code, and the same on every machine.  A failure prints the calls.

What the longest ways consist of, in calls:

A later lock of a transaction on PostgreSQL, of which 35 calls in 10 files were the goal:

- 5 are the method and its arguments: the lock with its timeout, the mapper, the key, the target;
- 4 ask whether the locks before it are still held: what the session, SQLAlchemy and the driver know of it;
- 3 are ``acquire()``, its part that may be tried again, and the object of the call, by which an error finds it;
- 2 ask whether it is held already, and whether it may be locked;
- 4 make the transaction fit: its database, the plan, what the transaction is fit for, the driver's AUTOCOMMIT;
- 2 find out where the row is, and 3 whether what is known of its table still holds;
- 6 send it: the lock that this level needs, the statement, and its execution;
- 2 are SQLAlchemy's calls of our listeners for a statement;
- 3 note that the driver has begun a transaction, and the lock in the ledger; 1 ends the call.

None of the kinds can go, and what is left of each is a step to another object: one for each kind of lock or
database, or a file of one subject.

A lock with a ``lock_timeout`` on PostgreSQL by psycopg, of which 62 calls were the goal: 39 are those of a lock
without one, of which 2 find out where the row is (``_note_database``), as class and key do not tell two tenants apart,
and 3 whether what is known of its table still holds (``table_answers.py``).  3 limit the wait: ``_blocks``, and
``WaitLimit``'s ``around()`` and ``send()``.  20 send BEGIN, the limit, the lock and the end of the limit in one round
trip:

- 2 make the block, and 4 put it on the connection and take it off;
- 7 are the cursor in place of the driver's: it is made, makes the driver's, is asked for ``execute``,
  ``description``, ``fetchall`` and ``close``;
- 2 put the limit around the lock;
- 5 send it: two functions, what makes the BEGIN, and what fetches the answers in psycopg's place, which is called
  once more when it has waited.  That is the depth of 13: SQLAlchemy executes the statement (8), the cursor gives it
  to the block (10), which sends it (11), ends the pipeline (12) and fetches (13).

A cursor of psycopg's own class would save 4 of the 7; but the class is the program's to choose, and the result of an
early read takes the place of a cursor.

``save_changes()`` of a declared document, of which the header and a detail have changed:

- 3 are its own;
- 13 are SQLAlchemy's calls of our listeners: 6 of the session's, 4 for two rows, 2 for two statements, 1 of the pool;
- 8 are two checks that the locks are still held, in front of the flush and of COMMIT.  Neither can go: between them
  are the flush and the listeners of the program, which may end the transaction, and ``commit()`` may come alone;
- 12 are the guard: 4 group the rows by their classes, each class is asked for the headers of its rows (4), and the
  document, which is one, is asked for once (2); warnings are reset before, and all is forgotten at the end;
- 3 are the guard's memory of the transaction, which it looks up once;
- 7 end the transaction, one of them its condition, and 4 tell the parts of the session.

A whole operation on SQLite, of which 80 calls were the goal: a new session locks a row, executes a SELECT, saves and is
closed.  The class is not declared.

- 13 are the methods that the program calls, and their arguments;
- 13 make objects: those of the session, of the transaction, of its connection and of the call;
- 14 are SQLAlchemy's calls of our listeners: 8 of the session's, 5 for statements, 1 of the pool;
- 13 open the transaction at the level of the lock, by BEGIN IMMEDIATE;
- 15 take the lock: 3 are the sequence, 2 ask whether it may be taken, 6 send it, 4 note it in the ledger;
- 2 find out where the row is, as above;
- 8 are the two checks of ``save_changes()`` that the locks are still held, as above, and 2 are guard and versions;
- 9 end the transaction: a ROLLBACK is put up for a COMMIT that is not sent, and the connection restored.

What is left could only go with an object or a check, or with a function that has a name and a second caller.
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
# The beliefs of a part about a transaction belong to the transaction: they are dropped with it, never cleared.


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
