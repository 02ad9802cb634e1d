"""After a wait for a lock, header and details add up, and the commit loses no update.

Generated from every mapping in this folder, every way to lock, and every change that another
session makes during the wait. ``make test`` runs every pair of a mapping and a way on some of the
databases, each with one of the changes; ``make test-all`` runs all of them on all databases.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.integration.mappings.conftest import Meet
from tests.integration.mappings.mapped_document import CHANGES, MappedDocument
from tests.integration.mappings.ways import WAYS, Way
from tests.support.databases import MATRIX, Database

NAMES = list(CHANGES)

#: ``make test`` runs every third way on each database, and every sixth with a pipeline.
SPREAD, SPREAD_OF_PIPELINE = 3, 6

Chosen = Sequence[tuple[Way, Sequence[str]]]
ALL: Chosen = [(way, NAMES) for way in WAYS]


def meet_in(meet: Meet, mapping: MappedDocument, chosen: Chosen, *, pipeline: bool) -> None:
    found: list[str] = []
    for way, changes in chosen:
        with meet(mapping, way, changes, pipeline=pipeline) as meeting:
            found += [f"{way}, {change}: {failure}" for change, failure in meeting.run().items()]
    assert not found, "\n".join(sorted(found))


class UnderTheLock:
    """The tests of each file of this folder, for each of its mappings."""

    mappings: Sequence[MappedDocument]

    def chosen_for(self, mapping: MappedDocument, column: int, spread: int = SPREAD) -> Chosen:
        """Return every n-th way, each with one of the changes; the next column runs other ways."""
        row = self.mappings.index(mapping)
        ways = WAYS[(row + column) % spread :: spread]
        return [(way, [NAMES[(row + WAYS.index(way)) % len(NAMES)]]) for way in ways]

    def test_what_another_session_changes_meanwhile_is_seen(
        self, meet: Meet, database: Database, mapping: MappedDocument
    ) -> None:
        chosen = self.chosen_for(mapping, MATRIX.index(database.column))
        meet_in(meet, mapping, chosen, pipeline=False)

    @pytest.mark.slow
    @pytest.mark.exhaustive
    def test_every_change_is_seen_in_every_way(self, meet: Meet, mapping: MappedDocument) -> None:
        meet_in(meet, mapping, ALL, pipeline=False)

    @pytest.mark.databases("postgresql")
    def test_what_another_session_changes_meanwhile_is_seen_pipeline(
        self, meet: Meet, mapping: MappedDocument
    ) -> None:
        meet_in(meet, mapping, self.chosen_for(mapping, 0, SPREAD_OF_PIPELINE), pipeline=True)

    @pytest.mark.databases("postgresql")
    @pytest.mark.slow
    @pytest.mark.exhaustive
    def test_every_change_is_seen_in_every_way_pipeline(
        self, meet: Meet, mapping: MappedDocument
    ) -> None:
        meet_in(meet, mapping, ALL, pipeline=True)
