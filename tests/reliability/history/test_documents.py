"""Details that are inserted and deleted: what is wrong with their document has a name, too."""

from __future__ import annotations

import pytest

from tests.reliability.history.anomalies import Name
from tests.reliability.history.checker import check
from tests.reliability.history.notation import history_of
from tests.reliability.history.wrong import DOCUMENTS

each = pytest.mark.parametrize("case", DOCUMENTS)


def _names(text: str) -> set[Name]:
    return {found.name for found in check(history_of(text))}


@each
def test_a_wrong_document_is_found_by_its_name(case: str) -> None:
    name, wrong, _ = DOCUMENTS[case]
    assert name in _names(wrong)


@each
def test_its_right_twin_passes(case: str) -> None:
    *_, right = DOCUMENTS[case]
    assert list(map(str, check(history_of(right)))) == []


def test_what_was_there_at_first_is_not_inserted() -> None:
    found = check(history_of("r1(d0) w1(d1/d-) c1"))
    assert [one.name for one in found] == [Name.GARBAGE_READ]
