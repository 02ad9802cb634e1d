"""Under a lock that was waited for, header and details add up, and the commit loses nothing.

Generated from every mapping of this folder, every way to lock, and every change that another
session makes meanwhile. ``make test`` runs every pair of a mapping and a way on some of the
databases, each with one of the changes; ``make test-all`` runs all of them on all databases.
"""

from __future__ import annotations

from itertools import product

import pytest

from tests.integration.mappings.conftest import Meet
from tests.integration.mappings.every_mapping import (
    ALL,
    MAPPINGS,
    NAMES,
    SPREAD_OF_PIPELINE,
    chosen_for,
    each_mapping,
    meet_in,
)
from tests.integration.mappings.expectations import DEFECTS, REFUSED, refusal_of
from tests.integration.mappings.mapped_document import MappedDocument
from tests.integration.mappings.ways import WAYS, Way
from tests.support.databases import MATRIX, Database


@each_mapping
def test_what_another_session_changes_meanwhile_is_seen(
    meet: Meet, database: Database, mapping: MappedDocument
) -> None:
    chosen = chosen_for(mapping, MATRIX.index(database.column))
    meet_in(meet, database, mapping, chosen, pipeline=False)


@pytest.mark.slow
@pytest.mark.exhaustive
@each_mapping
def test_every_change_is_seen_in_every_way(
    meet: Meet, database: Database, mapping: MappedDocument
) -> None:
    meet_in(meet, database, mapping, ALL, pipeline=False)


REFUSALS = [
    pytest.param(mapping, way, id=f"{mapping}-{way}")
    for mapping, way in product(MAPPINGS, WAYS)
    if refusal_of(mapping, way) is not None
]


@pytest.mark.parametrize(("mapping", "way"), REFUSALS)
def test_what_cannot_be_locked_is_refused(meet: Meet, mapping: MappedDocument, way: Way) -> None:
    refused = refusal_of(mapping, way)
    assert refused is not None
    raises = pytest.raises(refused.error, match=refused.says)
    with meet(mapping, way, NAMES[:1], pipeline=False) as meeting, raises:
        meeting.lock_at_once()


def test_refusals_and_defects_are_of_mappings_that_there_are() -> None:
    names = [mapping.name for mapping in MAPPINGS]
    assert len(set(names)) == len(names)
    assert {one.mapping for one in REFUSED} | {one.mapping for one in DEFECTS} <= set(names)


# --------------------------------------------------------------------------------------------------
# Documents under the lock with pipeline=True, as in test_under_the_lock.py.


@pytest.mark.databases("postgresql")
@each_mapping
def test_what_another_session_changes_meanwhile_is_seen_pipeline(
    meet: Meet, database: Database, mapping: MappedDocument
) -> None:
    meet_in(meet, database, mapping, chosen_for(mapping, 0, SPREAD_OF_PIPELINE), pipeline=True)


@pytest.mark.databases("postgresql")
@pytest.mark.slow
@pytest.mark.exhaustive
@each_mapping
def test_every_change_is_seen_in_every_way_pipeline(
    meet: Meet, database: Database, mapping: MappedDocument
) -> None:
    meet_in(meet, database, mapping, ALL, pipeline=True)
