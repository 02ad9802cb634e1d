"""The guard and the database agree on random writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lab.guard_generator.__main__ import run
from sa_doclock.core.documents import owners
from sa_doclock.guard import rules
from sa_doclock.guard.targets import Way
from sa_doclock.guard.write_guard import WriteGuard
from tests.support.databases import Database

pytestmark = pytest.mark.databases("sqlite", "postgresql")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "programs"),
    [(1, 500), (2, 500), *(pytest.param(n, 1000, marks=pytest.mark.exhaustive) for n in (3, 4))],
)
def test_no_write_to_a_document_that_is_not_held_passes(
    database: Database, seed: int, programs: int
) -> None:
    found = run(database.engine(), seed, programs)
    assert found.missed == []
    assert found.refused > 3 * found.needless.total()


def test_no_such_write_of_a_few_programs_passes(database: Database) -> None:
    found = run(database.engine(), seed=8, programs=50)
    assert found.missed == []
    assert found.refused > 3 * found.needless.total()


def test_without_the_guard_many_pass(database: Database) -> None:
    found = run(database.engine(), seed=8, programs=50, guard="off")
    assert len(found.missed) > 10
    assert not found.refused


_build_rules, _check_row = rules._build_rules, WriteGuard.check_row


def _without(**fields: Any) -> Callable[..., Any]:
    return lambda *given: _build_rules(*given)._replace(**fields)


def _changed_rows_alone(guard: WriteGuard, state: Any, way: Way) -> None:
    if way is not Way.INSERT:
        _check_row(guard, state, way)


EMPTY: frozenset[str] = frozenset()
DEFECTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "no row is checked when it is written": (WriteGuard, "check_row", lambda *_: None),
    "no new row is checked when it is inserted": (WriteGuard, "check_row", _changed_rows_alone),
    "a value that a listener sets is not seen": (
        *(rules, "_build_rules"),
        _without(checked=EMPTY, columns=EMPTY),
    ),
    "an SQL expression that a listener sets is not seen": (
        *(rules, "_build_rules"),
        _without(columns=EMPTY),
    ),
    "the old owner of an expired row is not asked for": (
        owners,
        "_is_set_unread",
        lambda *_: False,
    ),
}


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS)
def test_a_defect_that_a_flush_alone_meets_is_found(
    database: Database, monkeypatch: pytest.MonkeyPatch, defect: tuple[Any, str, Any]
) -> None:
    monkeypatch.setattr(*defect)
    engine = database.engine()
    assert run(engine, seed=3, programs=300).missed or run(engine, seed=7, programs=500).missed
