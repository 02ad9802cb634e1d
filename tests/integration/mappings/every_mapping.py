"""All mappings of this folder, and what a test does with one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.integration.mappings import (
    attributes,
    concrete,
    details,
    joined,
    keys,
    relationships,
    single_table,
    tables,
)
from tests.integration.mappings.changes import CHANGES
from tests.integration.mappings.conftest import Meet
from tests.integration.mappings.expectations import defects_of, refusal_of
from tests.integration.mappings.mapped_document import MappedDocument
from tests.integration.mappings.ways import WAYS, Way
from tests.support.databases import Database

FAMILIES: Sequence[Any] = (
    *(single_table, joined, concrete, keys),
    *(attributes, details, relationships, tables),
)
MAPPINGS: list[MappedDocument] = [one for family in FAMILIES for one in family.MAPPINGS]
NAMES = list(CHANGES)

#: Of three of the ways, ``make test`` takes one on each database; of six, one with a pipeline.
SPREAD, SPREAD_OF_PIPELINE = 3, 6

Chosen = Sequence[tuple[Way, Sequence[str]]]
ALL: Chosen = [(way, NAMES) for way in WAYS]

each_mapping = pytest.mark.parametrize("mapping", MAPPINGS, ids=str)


def chosen_for(mapping: MappedDocument, column: int, spread: int = SPREAD) -> Chosen:
    """Return one of so many ways, each with one of the changes; other ways in the next column."""
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
    """Compare what has failed with what is known to fail."""
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
