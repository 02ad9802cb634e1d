"""Random programs, other ones in every run: no update is lost, and nothing is written without its lock.

The seed stands in the summary of the run; ``SA_DOCLOCK_ATTACK_SEED=7`` repeats it, and
``SA_DOCLOCK_ATTACK_SECONDS=600`` goes on for longer than the 15 seconds of every day.
hypothesis shrinks a program that fails.
"""

from __future__ import annotations

import os
import random
import time

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.reliability.attack.deeds import FREE, LOCKS, PENDING, WRITES
from tests.reliability.attack.models import DOCS
from tests.reliability.attack.scenario import DISTURBANCES, Scenario, Step
from tests.reliability.attack.world import World
from tests.reliability.record import Reliability
from tests.support.databases import Database

SEED = int(os.environ.get("SA_DOCLOCK_ATTACK_SEED") or random.SystemRandom().randrange(2**32))
SECONDS = float(os.environ.get("SA_DOCLOCK_ATTACK_SECONDS") or 15)

docs = st.sampled_from(DOCS)
locks = st.builds(Step, st.just("lock"), st.sampled_from(sorted(LOCKS)), docs)
writes = st.builds(Step, st.just("write"), st.sampled_from(sorted(WRITES)), docs)
free = st.builds(Step, st.just("free"), st.sampled_from(sorted(FREE)), docs)
pending = st.builds(Step, st.just("pending"), st.sampled_from(sorted(PENDING)), docs)
others = st.builds(Step, st.just("others"), st.just(""), docs)
disturbances = st.builds(Step, st.sampled_from(DISTURBANCES))


def _round(doc: int, lock: str, write: str) -> list[Step]:
    """Read, let others write, lock, write: where an old value would be an update that is lost."""
    read, meanwhile = Step("read"), Step("others", "", doc)
    return [read, meanwhile, Step("lock", lock, doc), Step("write", write, doc)]


rounds = st.builds(_round, docs, st.sampled_from(sorted(LOCKS)), st.sampled_from(sorted(WRITES)))
steps_alone = st.one_of(locks, locks, writes, writes, free, pending, others, disturbances)
programs = st.lists(
    st.one_of(rounds, steps_alone.map(lambda step: [step])), min_size=1, max_size=8
).map(lambda parts: [step for part in parts for step in part])


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.not_databases("mssql", "sqlite-journal")
def test_no_program_loses_an_update(database: Database, reliability: Reliability) -> None:
    world = World(database)
    end = time.monotonic() + SECONDS
    run = failed = 0

    @seed(SEED)
    @settings(
        max_examples=1_000_000,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(steps=programs)
    def attack(steps: list[Step]) -> None:
        nonlocal run, failed
        if not failed and time.monotonic() > end:
            raise _TimeIsUp
        run += 1
        try:
            Scenario(world).run(steps)
        except BaseException:
            failed += 1
            raise

    try:
        attack()
    except _TimeIsUp:
        pass
    finally:
        reliability.fuzzed(f"programs against the locks of {database.name}, seed {SEED}", run)


class _TimeIsUp(BaseException):
    """The end of a run in which nothing was found; no Exception, which hypothesis would shrink."""
