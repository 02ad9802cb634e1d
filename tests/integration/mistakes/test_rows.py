"""The table of the README is made of rows that are tests."""

from __future__ import annotations

import pytest

from tests.integration.mistakes import test_order, test_silent, test_stale, test_unlocked
from tests.integration.mistakes.rows import MISTAKES, Mistake


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.test)
def test_every_row_is_a_test(row: Mistake) -> None:
    homes = [
        m for m in (test_order, test_silent, test_stale, test_unlocked) if hasattr(m, row.test)
    ]
    assert len(homes) == 1
