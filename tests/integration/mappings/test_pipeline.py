"""Documents under the lock with pipeline=True, as in test_under_the_lock.py."""

from __future__ import annotations

import pytest

from tests.integration.mappings.conftest import Meet
from tests.integration.mappings.every_mapping import (
    ALL,
    SPREAD_OF_PIPELINE,
    chosen_for,
    each_mapping,
    meet_in,
)
from tests.integration.mappings.mapped_document import MappedDocument
from tests.support.databases import Database

pytestmark = pytest.mark.databases("postgresql")


@each_mapping
def test_what_another_session_changes_meanwhile_is_seen(
    meet: Meet, database: Database, mapping: MappedDocument
) -> None:
    meet_in(meet, database, mapping, chosen_for(mapping, 0, SPREAD_OF_PIPELINE), pipeline=True)


@pytest.mark.slow
@pytest.mark.exhaustive
@each_mapping
def test_every_change_is_seen_in_every_way(
    meet: Meet, database: Database, mapping: MappedDocument
) -> None:
    meet_in(meet, database, mapping, ALL, pipeline=True)
