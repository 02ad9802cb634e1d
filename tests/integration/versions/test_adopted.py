"""A with_for_update() of a versioned class: get() compares, as SQLAlchemy has it; a select is fresh."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import LockingSession
from tests.integration.versions.models import Numbered
from tests.integration.versions.test_stale import change


@pytest.fixture(autouse=True)
def _read_before(session: LockingSession, other: LockingSession) -> None:
    """Have the session keep what it read before another session changed the header."""
    session.expire_on_commit = False
    session.info["kept"] = session.get_one(Numbered, 1)
    session.commit()
    change(other, Numbered)


def test_get_says_that_the_object_is_old(session: LockingSession) -> None:
    with pytest.raises(StaleDataError):
        session.get(Numbered, 1, with_for_update=True)


def test_a_select_reads_the_version_again(session: LockingSession, other: LockingSession) -> None:
    kept = session.info["kept"]
    session.scalars(sa.select(Numbered).where(Numbered.id == 1).with_for_update()).one().total += 1
    version = kept.version
    session.commit()
    assert kept.version == version + 1
    assert other.get_one(Numbered, 1).total == kept.total
