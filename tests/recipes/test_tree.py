"""A tree: each total is the cost and the totals of the children, and no project is below itself."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import CircularDependencyError, DBAPIError

from tests.recipes.conftest import Recipe
from tests.recipes.load import at_once, breaks

ROOTS, LEAVES = (1, 2), tuple(range(3, 10))
IN_A_CIRCLE = (  # the walk ends there too
    "    while project is not None:",
    "    for _ in range(99):\n        if project is None:\n            return",
)


def load(program: Any) -> None:
    with program.Session.begin() as session:
        session.execute(sa.update(program.Project).values(parent_id=None))
        session.execute(sa.delete(program.Project))
        session.add_all(program.Project(id=root, root_id=root) for root in ROOTS)
        session.flush()
        session.add_all(
            program.Project(id=leaf, root_id=1 + leaf % 2, parent_id=1 + leaf % 2)
            for leaf in LEAVES
        )
    calls = [partial(program.add_cost, leaf, 5) for leaf in LEAVES for _ in range(3)]
    for _ in range(25):
        calls.append(partial(program.move, *random.sample((*ROOTS, *LEAVES), 2)))
        if calls[-1].args[0] in ROOTS:
            calls.pop()
    at_once(calls, ValueError)
    with program.Session() as session:
        found = {p.id: p for p in session.scalars(sa.select(program.Project))}
    for project in found.values():
        below = sum(p.total for p in found.values() if p.parent_id == project.id)
        assert project.total == project.cost + below
        above = project
        for _ in found:  # no circle: the root is reached
            above = found[above.parent_id] if above.parent_id else above
        assert above.id == project.root_id
    assert sum(found[root].total for root in ROOTS) == 5 * 3 * len(LEAVES)


@pytest.mark.slow
def test_totals_and_roots_are_right(recipe: Recipe) -> None:
    load(recipe("tree"))


@pytest.mark.databases("postgresql")
def test_without_the_lock_it_goes_wrong(recipe: Recipe) -> None:
    program = recipe("tree", ("LockOptions.ForUpdate", "LockOptions.None_"), IN_A_CIRCLE)
    assert breaks(lambda: load(program), DBAPIError, CircularDependencyError)
