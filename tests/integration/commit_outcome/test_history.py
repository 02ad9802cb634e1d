"""An id is that of one transaction in one history of one server; elsewhere it says less."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from sa_doclock.dialects.base import Outcome
from sa_doclock.dialects.postgresql.commit_outcome import PostgreSQLCommitOutcomes
from tests.support.databases import Database

pytestmark = [pytest.mark.quick, pytest.mark.databases("postgresql")]

COMMITTED, ABORTED, UNKNOWN = Outcome.COMMITTED, Outcome.ABORTED, Outcome.UNKNOWN
#: By what differs: what is known of a transaction that was committed, and of one that was not.
KNOWN = {
    None: (COMMITTED, ABORTED),
    "cluster": (UNKNOWN, UNKNOWN),
    "timeline": (UNKNOWN, ABORTED),
    "recovery": (UNKNOWN, ABORTED),
}


@pytest.mark.parametrize("other", KNOWN)
def test_of_another_history(documents: Database, other: str | None) -> None:
    outcomes, found = PostgreSQLCommitOutcomes(), []
    with documents.engine().connect() as connection:
        for end in (connection.commit, connection.rollback):
            connection.execute(sa.text("SELECT pg_current_xact_id()"))
            number, *history = connection.exec_driver_sql(outcomes.question).one()
            end()
            now = zip(("cluster", "timeline", "recovery"), history, strict=True)
            then = ["another" if name == other else value for name, value in now]
            found.append(outcomes.outcome(connection, (number, *then)))
            connection.rollback()
    assert tuple(found) == KNOWN[other]


def test_of_a_transaction_that_runs_and_of_one_that_the_server_does_not_have(
    documents: Database,
) -> None:
    outcomes, engine = PostgreSQLCommitOutcomes(), documents.engine()
    with engine.connect() as connection, engine.connect() as running:
        running.execute(sa.text("SELECT pg_current_xact_id()"))
        number, *history = running.exec_driver_sql(outcomes.question).one()
        assert outcomes.outcome(connection, (number, *history)) is Outcome.IN_PROGRESS
        assert outcomes.outcome(connection, (str(int(number) + 10**6), *history)) is ABORTED
        connection.rollback()
        assert outcomes.outcome(connection, ("3", *history)) in (COMMITTED, UNKNOWN)
