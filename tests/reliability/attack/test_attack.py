"""Random programs, other ones in every run: no update is lost, and nothing is written without its lock.

Along the axes they go to other schemas, engines, Table objects and so on: the same programs in each run, and other ones in the
exhaustive test.

The seed stands in the summary of the run; ``SA_DOCLOCK_ATTACK_SEED=7`` repeats it, and
``SA_DOCLOCK_ATTACK_SECONDS=600`` goes on for longer than the 15 seconds of every day.  ``SA_DOCLOCK_ATTACK_AXIS="a second
schema by a map"`` has no other axis.
hypothesis shrinks a program that fails.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.reliability.attack.axes import ADDITIONS, STAGES
from tests.reliability.attack.programs import Attack
from tests.reliability.attack.world import World, second
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


@pytest.mark.not_databases("mssql", "mysql", "mariadb", "postgresql", "sqlite-journal")
def test_the_same_programs_along_the_axes_lose_no_update(database: Database) -> None:
    with second(database) as there:
        attack = Attack(World(database, second=there), 35, stages=STAGES, additions=ADDITIONS)
        attack.go_on(programs_at_most=PROGRAMS)


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
