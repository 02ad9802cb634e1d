"""The server of these tests refuses a wrong order as the real one is documented to do."""

from __future__ import annotations

import pytest

from tests.sql.tds.answers import Rows
from tests.sql.tds.errors import Refused
from tests.sql.tds.model import OFF, Database, Session, Settings

SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL SNAPSHOT"
READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
SERIALIZABLE = "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"
BEGIN = "IF @@TRANCOUNT = 0 BEGIN TRANSACTION"
READ = "SELECT t.a FROM t"
SKIP = "SELECT t.a FROM t WITH (READPAST)"
ALTER = "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON"

REFUSED = {
    (BEGIN, ALTER): 226,
    ("SET IMPLICIT_TRANSACTIONS ON", ALTER): 226,
    (SNAPSHOT, BEGIN, SKIP): 650,
    (SERIALIZABLE, BEGIN, SKIP): 650,
    ("COMMIT",): 3902,
    ("ROLLBACK",): 3903,
    (BEGIN, SNAPSHOT, READ): 3951,
    (BEGIN, READ, SNAPSHOT, READ): 3951,
    ("SET IMPLICIT_TRANSACTIONS ON", READ, SNAPSHOT, READ): 3951,
}
TAKEN = (
    (ALTER,),
    (BEGIN, "COMMIT", ALTER),
    (READ_COMMITTED, BEGIN, SKIP),
    (BEGIN, "COMMIT"),
    (BEGIN, "ROLLBACK"),
    ("IF @@TRANCOUNT > 0 ROLLBACK TRAN",),
    (SNAPSHOT, BEGIN, READ),
    (SNAPSHOT, BEGIN, READ_COMMITTED, READ, SNAPSHOT, READ),  # documented as allowed
    (BEGIN, SNAPSHOT, "COMMIT", BEGIN, READ),
)


def run(session: Session, *batches: str) -> list[object]:
    return [answer for batch in batches for answer in session.batch(batch)]


@pytest.mark.parametrize("order", REFUSED, ids="; ".join)
def test_a_wrong_order_is_refused(order: tuple[str, ...]) -> None:
    session = Session(Database())
    run(session, *order[:-1])
    with pytest.raises(Refused) as caught:
        run(session, order[-1])
    assert caught.value.number == REFUSED[order]


@pytest.mark.parametrize("order", TAKEN, ids="; ".join)
def test_a_right_one_is_taken(order: tuple[str, ...]) -> None:
    run(Session(Database()), *order)


def test_a_database_refuses_snapshots_until_it_allows_them() -> None:
    session = Session(Database(snapshot=OFF))
    with pytest.raises(Refused, match="3952"):
        run(session, SNAPSHOT, BEGIN, READ)
    run(session, "COMMIT", ALTER, READ)


@pytest.mark.parametrize(("number", "survives"), [(1222, True), (1205, False), (3960, False)])
def test_a_transaction_survives_some_errors(number: int, *, survives: bool) -> None:
    session = Session(Database(failures=[("FROM t", number)]))
    run(session, BEGIN)
    with pytest.raises(Refused, match=str(number)):
        run(session, READ)
    assert (session.begun_at is not None) == survives


def test_what_a_procedure_sets_ends_with_it() -> None:
    session = Session(Database())
    (*_, rows, _) = run(session, "EXEC sp_executesql N'SET LOCK_TIMEOUT 300; SELECT t.a FROM t'")
    assert rows == Rows(["a"], [[1]])
    assert session.settings == Settings()
    list(session.procedure(f"SET LOCK_TIMEOUT 300; {READ}"))
    assert session.settings == Settings()


def test_what_a_batch_sets_stays() -> None:
    session = Session(Database())
    run(session, f"SET LOCK_TIMEOUT 300; SET DEADLOCK_PRIORITY LOW; {SNAPSHOT}")
    assert session.settings == Settings("SNAPSHOT", 300, -5)


def test_a_semicolon_in_a_text_ends_nothing() -> None:
    assert len(run(Session(Database()), "SELECT t.a FROM t WHERE t.b = 'it''s; so'; SELECT 1")) == 2
