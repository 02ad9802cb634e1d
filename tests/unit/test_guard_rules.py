"""The rules of the guard: what a row names, and what its deletion writes to apart from its own document."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import inspect
from sqlalchemy.orm import make_transient_to_detached

from sa_doclock.core.documents.mapping import mapper_of
from sa_doclock.guard.full_check import new_key_of
from sa_doclock.guard.rules import rules_for
from tests.integration.guard.models import Customer, Line, Order


@pytest.mark.parametrize(("entity", "deletes"), [(Order, set()), (Customer, {"orders"})])
def test_own_parts_are_deleted_under_the_same_lock(entity: type[Any], deletes: set[str]) -> None:
    rules = rules_for(mapper_of(entity))
    assert rules is not None
    assert set(rules.deletes) == deletes


def test_a_part_whose_foreign_key_is_that_of_the_header_is_judged_without_other_rows() -> None:
    line, rules = Line(order_id=7), rules_for(mapper_of(Line))
    assert rules is not None
    assert rules.named is not None
    assert [*rules.named([inspect(line)])] == [(7,)]


@pytest.mark.parametrize(("changed", "key"), [("note", None), ("id", (2,))])
def test_only_a_header_whose_key_is_set_has_a_new_key(changed: str, key: object) -> None:
    order, rules = Order(id=1), rules_for(mapper_of(Order))
    make_transient_to_detached(order)
    setattr(order, changed, 2)
    assert rules is not None
    assert new_key_of(inspect(order), rules) == key
