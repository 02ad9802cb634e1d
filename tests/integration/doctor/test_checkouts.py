"""The checks of check-outs: their table is missing, or the clocks run apart."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from sa_doclock import check_database
from sa_doclock.tools.doctor import checkouts
from tests.integration.checkouts.models import Base
from tests.integration.doctor.test_models import Elsewhere
from tests.support.databases import Database


def codes(database: Database, base: object = Base) -> dict[str, str]:
    found = check_database(database.engine(), base)
    return {
        one.code: one.text
        for one in found
        if one.code in ("checkout-table-missing", "clocks-apart")
    }


def test_nothing_is_wrong(database: Database) -> None:
    database.create(Base.metadata)
    assert codes(database) == {}


def test_the_table_is_missing(database: Database) -> None:
    found = codes(database)
    assert list(found) == ["checkout-table-missing"]
    assert "there is no table co_checkouts" in found["checkout-table-missing"]
    assert codes(database, Elsewhere) == {}  # nothing is checked out there


@pytest.mark.parametrize(("hours", "which"), [(1, "behind"), (-1, "ahead of")])
def test_the_clocks_run_apart(
    database: Database, monkeypatch: pytest.MonkeyPatch, hours: int, which: str
) -> None:
    database.create(Base.metadata)

    def wrong() -> datetime:
        return datetime.now(timezone.utc) + timedelta(hours=hours)

    monkeypatch.setattr(checkouts, "client_time", wrong)
    found = codes(database)
    assert list(found) == ["clocks-apart"]
    assert which in found["clocks-apart"]
