"""Many composite keys are locked on SQL Server by several short statements, in the order of the keys."""

from __future__ import annotations

from sa_doclock import LockingSession, LockOptions
from tests.sql.models import Voucher
from tests.sql.servers import serving

KEYS = [(2026, number) for number in range(1000)]


def test_a_thousand_keys_are_no_statement_of_a_thousand_alternatives() -> None:
    with serving("mssql") as (engine, script), LockingSession(engine) as session:
        session.get_entities(Voucher, list(reversed(KEYS)), LockOptions.ForUpdate)
    locking = [sql for sql in script.selects if "UPDLOCK" in sql]
    assert len(locking) == 10
    numbers = []
    for sql in locking:
        values = [int(value) for value in sql.partition("-- ")[2].split(", ")]
        assert len(values) == 200
        numbers += [value for value in values if value != 2026]
    assert numbers == list(range(1000))
