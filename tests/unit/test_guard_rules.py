"""The rules of the guard: what the deletion of a row writes to, apart from its own document."""

from __future__ import annotations

from typing import Any

import pytest

from sa_doclock.core.documents.mapping import mapper_of
from sa_doclock.features.guard.rules import rules_for
from tests.integration.guard.models import Customer, Order


@pytest.mark.parametrize(("entity", "deletes"), [(Order, set()), (Customer, {"orders"})])
def test_own_parts_are_deleted_under_the_same_lock(entity: type[Any], deletes: set[str]) -> None:
    rules = rules_for(mapper_of(entity))
    assert rules is not None
    assert set(rules.deletes) == deletes
