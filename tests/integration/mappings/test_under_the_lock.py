"""All mappings of this folder, under the lock."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from tests.integration.mappings import attributes, details, inheritance, keys, relationships, tables
from tests.integration.mappings.conftest import Meet
from tests.integration.mappings.mapped_document import CHANGES, MappedDocument
from tests.integration.mappings.ways import DEFECTS, REFUSED, WAYS, Way, defects_of, refusal_of
from tests.support.databases import MATRIX, Database

FAMILIES: Sequence[Any] = (
    *(inheritance, keys),
    *(attributes, details, relationships, tables),
)
MAPPINGS: list[MappedDocument] = [one for family in FAMILIES for one in family.MAPPINGS]
NAMES = list(CHANGES)

#: ``make test`` runs every third way on each database, and every sixth with a pipeline.
SPREAD, SPREAD_OF_PIPELINE = 3, 6

Chosen = Sequence[tuple[Way, Sequence[str]]]
ALL: Chosen = [(way, NAMES) for way in WAYS]

each_mapping = pytest.mark.parametrize("mapping", MAPPINGS, ids=str)


def chosen_for(mapping: MappedDocument, column: int, spread: int = SPREAD) -> Chosen:
    """Return every n-th way, each with one of the changes; the next column runs other ways."""
    row = MAPPINGS.index(mapping)
    ways = WAYS[(row + column) % spread :: spread]
    return [(way, [NAMES[(row + WAYS.index(way)) % len(NAMES)]]) for way in ways]


def meet_in(
    meet: Meet,
    database: Database,
    mapping: MappedDocument,
    chosen: Chosen,
    *,
    pipeline: bool,
) -> None:
    """Compare the failures with the known ones."""
    found: list[str] = []
    for way, changes in chosen:
        if refusal_of(mapping, way) is None:
            with meet(mapping, way, changes, pipeline=pipeline) as meeting:
                failures = meeting.run()
            known = defects_of(mapping, way, changes, database.name)
            found += [
                f"{way}, {change}: {failures[change]}" for change in failures.keys() - known.keys()
            ]
            found += [
                f"{way}, {change}: cured, so take defect {known[change]} out of expectations.py"
                for change in known.keys() - failures.keys()
            ]
    assert not found, "\n".join(sorted(found))


# --------------------------------------------------------------------------------------------------
# Under a lock that had to wait, header and details add up, and the commit loses nothing.
#
# Generated from every mapping of this folder, every way to lock, and every change that another
# session makes meanwhile. ``make test`` runs every pair of a mapping and a way on some of the
# databases, each with one of the changes; ``make test-all`` runs all of them on all databases.


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


@pytest.mark.each_value
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
