"""Random programs, different in every run: no update is lost, and no write happens without its lock.

Along the axes they use other schemas, engines, Table objects and so on: the same programs in each run, and different
programs in the exhaustive test.

The summary of the run shows the seed; ``SA_DOCLOCK_ATTACK_SEED=7`` repeats it.
``SA_DOCLOCK_ATTACK_SECONDS=600`` extends the daily 15 seconds. ``SA_DOCLOCK_ATTACK_AXIS="a second schema by a
map"`` selects a single axis. hypothesis shrinks a program that fails.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy.exc import SQLAlchemyError

from sa_doclock import DocLockError, DocumentGate, LockingSession, LockNotAvailable
from tests.reliability.attack.actions import PENDING, WRITES
from tests.reliability.attack.axes import ADDITIONS, STAGES
from tests.reliability.attack.programs import Attack
from tests.reliability.attack.world import DOCS, Counters, Order, World, second
from tests.reliability.record import Reliability
from tests.support.databases import Database

SEED = int(os.environ.get("SA_DOCLOCK_ATTACK_SEED") or random.SystemRandom().randrange(2**32))
SECONDS = float(os.environ.get("SA_DOCLOCK_ATTACK_SECONDS") or 15)
PROGRAMS = 100
"""Along the axes, in each run; about six seconds on each database."""
AXIS = os.environ.get("SA_DOCLOCK_ATTACK_AXIS", "")


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.not_databases("mssql", "sqlite-journal")
def test_no_program_loses_an_update(database: Database, reliability: Reliability) -> None:
    attack = Attack(World(database), SEED)
    try:
        attack.go_on(seconds=SECONDS)
    finally:
        what = f"programs against the locks of {database.name}, seed {SEED}"
        reliability.fuzzed(what, attack.run)


@pytest.mark.not_databases("mssql", "mysql", "mariadb", "sqlite-journal")
def test_the_same_programs_along_the_axes_lose_no_update(database: Database) -> None:
    with second(database) as there:
        attack = Attack(World(database, second=there), 35, stages=STAGES, additions=ADDITIONS)
        attack.go_on(programs_at_most=PROGRAMS, seconds=60)  # fewer on a busy machine


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(0)
@pytest.mark.not_databases("mssql", "sqlite-journal")
def test_no_program_loses_an_update_along_the_axes(
    database: Database, reliability: Reliability
) -> None:
    stages, additions = (
        [axis for axis in some if AXIS in axis.name] for some in (STAGES, ADDITIONS)
    )
    with second(database) as there:
        attack = Attack(World(database, second=there), SEED, stages=stages, additions=additions)
        try:
            attack.go_on(seconds=SECONDS)
        finally:
            what = f"programs against the locks of {database.name} along the axes, seed {SEED}"
            reliability.fuzzed(what, attack.run)


# --------------------------------------------------------------------------------------------------
# Random functions of gate.run(), different in every run: answered work is saved once, nothing else.
#
# The seed and the duration are those of test_attack.py.

CALLERS, CALLS = 8, 6
FAILURES = (*(None,) * 6, "before", "after", "flush", "rollback", "swallow")


def _row(table: str, position: int, doc: int) -> tuple[str, int]:
    return table, doc if table in ("at_order", "lines") else 10 * doc + position


class Failed(Exception):
    """Raised on purpose by a function of the gate."""


class Call:
    """One call: some writes, and its ending."""

    def __init__(self, chance: random.Random, doc: int) -> None:
        ways = [*WRITES.items(), *PENDING.items()]
        self.doc, self.ends = doc, chance.choice(FAILURES)
        self.writes = chance.choices(ways, k=chance.randint(1, 3))
        self.counters: Counters = Counter()
        for _, (_, counts) in self.writes:
            self.counters.update(_row(table, position, doc) for table, position in counts)

    def __call__(self, session: LockingSession, order: Order) -> None:
        if self.ends == "before":
            raise Failed
        for number, (_, (action, _)) in enumerate(self.writes):
            if number:  # a program reads its own writes again, and sees those of others
                session.flush()
                session.expire_all()
            action(session, self.doc)
        if self.ends == "after":
            raise Failed
        if self.ends == "rollback":
            session.rollback()
        if self.ends in ("flush", "swallow"):
            session.add(Order(id=self.doc, count=0))  # which exists
            if self.ends == "swallow":
                try:
                    session.flush()
                except SQLAlchemyError:
                    return

    def __repr__(self) -> str:
        return f"{self.doc}: {[name for name, _ in self.writes]}, {self.ends}"


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore:New instance")
@pytest.mark.not_databases("mssql", "sqlite-journal")
def test_what_is_answered_is_saved_once(database: Database, reliability: Reliability) -> None:
    world, chance, until = World(database), random.Random(SEED), time.monotonic() + SECONDS
    runs = 0
    while time.monotonic() < until:
        world.refill()
        before, gate = world.counters(), DocumentGate()
        plans = [[Call(chance, chance.choice(DOCS)) for _ in range(CALLS)] for _ in range(CALLERS)]

        def work(calls: list[Call], gate: DocumentGate = gate) -> Counters:
            saved: Counters = Counter()
            for call in calls:
                try:
                    gate.run(world.session, Order, call.doc, call)
                except LockNotAvailable:  # noqa: PERF203  # SQLite's, at once
                    continue
                except (Failed, SQLAlchemyError, DocLockError):
                    assert call.ends is not None, call
                else:
                    saved += call.counters
            return saved

        expected: Any = Counter(before)
        with ThreadPoolExecutor(CALLERS) as threads:
            for saved in threads.map(work, plans):
                expected += saved
        assert world.counters() == expected, (SEED, plans)
        runs += CALLERS * CALLS
    reliability.fuzzed(f"functions of gate.run() on {database.name}, seed {SEED}", runs)
