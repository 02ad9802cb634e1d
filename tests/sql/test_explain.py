"""explain_lock() on scripted servers: all that a session tells its driver, and never a lock."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from sa_doclock import LockingSession, LockNotSupported, LockOptions, explain_lock
from sa_doclock.tools.explain.explanation import without_lock
from tests.sql.models import Order
from tests.sql.servers import DATABASES, serving

FOR_UPDATE, SHARED = LockOptions.ForUpdate, LockOptions.SharedRead
LOCK_WORDS = ("FOR UPDATE", "FOR SHARE", "FOR NO KEY", "SHARE MODE", "UPDLOCK", "IMMEDIATE")
METHODS = ("(", "SELECT CURRENT_TRANSACTION_ID()")


@pytest.mark.parametrize("database_name", [one for one in DATABASES if one != "mysql-5.7"])
@pytest.mark.parametrize(
    ("lock", "seconds"),
    [
        *((lock, seconds) for lock in (FOR_UPDATE, SHARED) for seconds in (None, 0.3)),
        (FOR_UPDATE | LockOptions.NoWait, None),
    ],
    ids=str,
)
def test_the_statements_are_all_that_the_driver_gets(
    monkeypatch: pytest.MonkeyPatch, database_name: str, seconds: float | None, lock: LockOptions
) -> None:
    # The script itself, and not a copy of the engine, which would ask a psycopg that is there.
    monkeypatch.setattr("sa_doclock.tools.explain.explanation.side_engine", nullcontext)
    with serving(database_name) as (engine, script):
        received = explain_lock(engine, Order, lock, lock_timeout=seconds)
        asked = list(script.sent)
        for _ in range(2):
            script.sent.clear()
            with LockingSession(engine) as session:
                session.get_document(Order, 1, lock, lock_timeout=seconds)
                sent = [" ".join(one.partition("  -- ")[0].split()) for one in script.sent]
    if database_name != "sqlite":
        assert not [one for one in asked if any(word in one for word in LOCK_WORDS)]
    expected = [one for one in sent if not one.startswith("(")]
    if database_name == "postgresql" and seconds is not None:  # the values stand in the text
        expected[0] = expected[0].replace("%s", "'300ms'", 1).replace("%s", "'330ms'")
    assert [one for one in received.statements if not one.startswith("SET TRANSACTION")] == [
        one for one in expected if not one.startswith("SET TRANSACTION")
    ]


@pytest.mark.parametrize(
    ("statement", "sent"),
    [
        ("SELECT 1 FROM a WHERE b = 1 FOR UPDATE", "SELECT 1 FROM a WHERE b = 1"),
        ("SELECT 1 FROM a \nFOR UPDATE OF a, b NOWAIT", "SELECT 1 FROM a"),
        ("SELECT 1 FROM a FOR NO KEY UPDATE OF a SKIP LOCKED", "SELECT 1 FROM a"),
        ("SELECT 1 FROM a FOR SHARE OF a", "SELECT 1 FROM a"),
        ("SELECT 1 FROM a LOCK IN SHARE MODE WAIT 1", "SELECT 1 FROM a"),
        (
            "SELECT 1 FROM a WITH (UPDLOCK, ROWLOCK, FORCESEEK) WHERE b = 1",
            "SELECT 1 FROM a WITH (NOLOCK) WHERE b = 1",
        ),
        ("BEGIN IMMEDIATE", "BEGIN"),
    ],
)
def test_a_lock_is_taken_out(statement: str, sent: str) -> None:
    assert without_lock(statement) == sent


@pytest.mark.parametrize("statement", ["SELECT for_update FROM a", "BEGIN", "PRAGMA busy_timeout"])
def test_a_statement_without_a_lock_stays_as_it_is(statement: str) -> None:
    assert without_lock(statement) == statement


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1 FROM a FOR UPDATE LIMIT 1",
        "SELECT GET_LOCK('a', 1)",
        "SELECT pg_advisory_xact_lock(1)",
        "UPDATE a SET b = 1",
        "LOCK TABLE a",
    ],
)
def test_a_lock_that_cannot_be_taken_out_is_not_sent(statement: str) -> None:
    with pytest.raises(LockNotSupported, match="cannot take the lock out"):
        without_lock(statement)
