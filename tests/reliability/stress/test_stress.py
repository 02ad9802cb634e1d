"""The acceptance test of the whole idea, and proof that it can fail."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest
from _pytest.mark.structures import ParameterSet
from sqlalchemy import Engine

from sa_doclock import LockOptions
from sa_doclock.tools.cli.database import open_database
from sa_doclock.tools.cli.workload import Operation, Plan, RunOutcome, fresh_tables, run
from tests.support.databases import Database

READS = {"shared": LockOptions.SharedRead, "snapshot": LockOptions.SnapshotRead}
WAYS, WRITERS = {"entity": False, "whole": True}, {"totals": False, "details-only": True}


def half_of(*factors: Mapping[str, object]) -> list[ParameterSet]:
    """Return all combinations; CI runs one half, in which every two values meet."""
    combinations = []
    for chosen in product(*(enumerate(factor.items()) for factor in factors)):
        odd = sum(place for place, _ in chosen) % 2
        combinations.append(
            pytest.param(
                *(value for _, (_, value) in chosen),
                marks=[pytest.mark.exhaustive] if odd else [],
                id="-".join(name for _, (name, _) in chosen),
            )
        )
    return combinations


both_writers = pytest.mark.parametrize("details_only", WRITERS.values(), ids=WRITERS)
both_ways = pytest.mark.parametrize("whole", WAYS.values(), ids=WAYS)


def summary(outcome: RunOutcome) -> str:
    tally = outcome.tally
    return (
        f"{tally.done} of {outcome.plan.total_steps} done, {tally.broken_reads} broken reads, "
        f"{tally.stale_reads} stale reads, {outcome.broken_documents}, {tally.retries} retries, "
        f"{tally.errors}"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("read", "whole", "details_only"), half_of(READS, WAYS, WRITERS))
def test_with_locks_nothing_goes_wrong(
    engine: Engine, read: LockOptions, whole: bool, details_only: bool
) -> None:
    outcome = run(engine, Plan(read=read, whole=whole, details_only=details_only, seed=1))
    assert outcome.ok, summary(outcome)
    assert outcome.tally.retries == 0


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("whole", "details_only"), half_of(WAYS, WRITERS))
def test_without_locks_it_finds_what_goes_wrong(
    engine: Engine, database: Database, whole: bool, details_only: bool
) -> None:
    plan = Plan(locks=False, whole=whole, details_only=details_only, iterations=20, seed=1)
    outcome = run(engine, plan)
    # MariaDB since 11.6.2, at its default isolation level, answers a write over another's with
    # error 1020. No document becomes wrong, but no program finishes its work.
    refused = database.name == "mariadb" and outcome.tally.count_of("SnapshotConflict")
    assert outcome.inconsistencies or refused, summary(outcome)
    assert not outcome.ok


@pytest.mark.slow
@pytest.mark.exhaustive
@both_writers
@pytest.mark.databases("mariadb")
def test_without_locks_it_finds_what_goes_wrong_at_read_committed(
    database: Database, details_only: bool
) -> None:
    with open_database(database.url, Plan().threads) as target:
        engine = target.engine.execution_options(isolation_level="READ COMMITTED")
        with fresh_tables(engine):
            plan = Plan(locks=False, details_only=details_only, iterations=20, seed=1)
            outcome = run(engine, plan)
    assert outcome.inconsistencies, summary(outcome)


class PlainReaders(Plan):
    def lock_of(self, operation: Operation) -> LockOptions:
        return LockOptions.None_ if operation is Operation.LOAD else super().lock_of(operation)


@pytest.mark.slow
@pytest.mark.exhaustive
@both_ways
@pytest.mark.not_databases("mysql", "mariadb")  # a plain read is a snapshot, at their default
def test_readers_without_their_lock_see_broken_documents(engine: Engine, whole: bool) -> None:
    outcome = run(engine, PlainReaders(documents=1, whole=whole, seed=1))
    assert outcome.tally.broken_reads, summary(outcome)
    assert not outcome.broken_documents, summary(outcome)


class PlainWriters(Plan):
    def lock_of(self, operation: Operation) -> LockOptions:
        return super().lock_of(operation) if operation is Operation.LOAD else LockOptions.None_


@both_ways
def test_writers_without_their_lock_are_refused_by_the_guard(engine: Engine, whole: bool) -> None:
    outcome = run(engine, PlainWriters(threads=10, iterations=5, whole=whole, seed=1))
    assert outcome.tally.errors.keys() == {"UnlockedWrite"}, summary(outcome)
    assert outcome.inconsistencies == 0, summary(outcome)
