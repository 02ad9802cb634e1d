"""Read replicas: a report never has a total that is not that of its lines, and what one has written is in it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from tests.recipes.conftest import Recipe
from tests.recipes.load import at_once, breaks


def load(program: Any) -> None:
    with program.Session.begin() as session, session.unguarded():
        session.execute(sa.delete(program.Line))
        session.execute(sa.delete(program.Order))
        session.add(program.Order(id=1))

    def write_and_read() -> Any:
        return program.read(1, at_least=program.add_line(1, 7))

    answers = at_once([write_and_read, partial(program.read, 1), partial(program.read, 1)] * 20)
    for answer in answers:
        assert answer["total"] == sum(answer["lines"])
    assert len(program.read(1)["lines"]) == 20


@pytest.mark.slow
def test_a_report_is_of_one_moment(recipe: Recipe) -> None:
    load(recipe("read-replicas"))


@pytest.mark.databases("postgresql")
def test_without_the_snapshot_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("read-replicas", ("LockOptions.SnapshotRead", "LockOptions.None_"))
    assert breaks(lambda: load(program))
