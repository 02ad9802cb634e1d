"""The attack finds each of these defects, within 300 programs of a fixed seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from sqlalchemy.orm import Session, class_mapper
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import versions
from sa_doclock.adoption.adopted_rows import AdoptedRows
from sa_doclock.adoption.loaded_headers import LoadedHeaders
from sa_doclock.core.documents import owners, takes
from sa_doclock.core.ledger import Ledger, RowPlace
from sa_doclock.core.loading import DocumentIndex, LoadedDocuments, role_of
from sa_doclock.core.locking.by_key import _RowsByKey
from sa_doclock.core.locking.select import RowsOfSelect
from sa_doclock.core.transaction import make_plan
from sa_doclock.core.transaction.connection import TransactionConnection
from sa_doclock.core.transaction.connection_events import ConnectionEvents
from sa_doclock.guard import full_check, write_guard
from sa_doclock.guard.full_check import FullCheck
from sa_doclock.guard.targets import Write
from sa_doclock.guard.write_guard import WriteGuard
from tests.reliability.attack.axes import ADDITIONS, STAGES
from tests.reliability.attack.axes.axis import Axis
from tests.reliability.attack.axes.elsewhere import MAPPED_SCHEMA
from tests.reliability.attack.models import Again
from tests.reliability.attack.programs import Attack
from tests.reliability.attack.world import World, second
from tests.support.databases import Database

PROGRAMS = 300
SEED = 35


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def yes(*_: Any, **__: Any) -> bool:
    """Return True."""
    return True


def no(*_: Any, **__: Any) -> bool:
    """Return False."""
    return False


def _expire_fresh(index: Any, state: Any, role: Any, *rest: Any) -> None:
    if not role.parts:
        _real_expire_fresh(index, state, role, *rest)


def _expire_parts_alone(index: Any, state: Any, unreadable: Any) -> None:
    role = role_of(index._root, state.mapper)
    if role is None or not role.header:
        _real_expire_one(index, state, unreadable)


def _opens_alone(adopted: Any, bind: Any, strategy: Any) -> Any:
    joined = adopted.context.connections.find(Session.connection(adopted.session, {"bind": bind}))
    return joined, make_plan(None, adopted.request.lock, strategy)


def _expire_once(target: Any, request: Any) -> None:
    if not target.__dict__.setdefault("expired", False):
        target.expired = True
        (_real_expire_of_set if isinstance(target, RowsOfSelect) else _real_expire)(target, request)


def _rules_for(mapper: Any) -> Any:
    return None if issubclass(mapper.class_, Again) else _real_rules_for(mapper)


def _check_row(guard: Any, state: Any, write: Write) -> None:
    if write is not Write.INSERT:
        _real_check_row(guard, state, write)


def _was_part(state: Any, part: Any) -> bool:
    before = {**state.dict, **state.committed_state}
    return takes(part.discriminators, before)


_real_expire, _real_expire_of_set = _RowsByKey.expire, RowsOfSelect.expire
_real_expire_fresh, _real_expire_one = DocumentIndex._expire_fresh, DocumentIndex._expire
_real_rules_for = write_guard.rules_for
_real_check_row = WriteGuard.check_row


Replaced = tuple[Any, str, Callable[..., Any]]
MUTANTS: Mapping[str, tuple[Replaced, ...]] = {
    "a header is not read again": ((DocumentIndex, "_expire", _expire_parts_alone),),
    "parts are not read again": ((DocumentIndex, "_expire_fresh", _expire_fresh),),
    "an adopted lock reads nothing again": (
        (LoadedHeaders, "prepare", lambda _, statement: statement),
    ),
    "an adopted lock is none": ((AdoptedRows, "_take_in_transaction", _opens_alone),),
    "second classes are not guarded": (
        (write_guard, "rules_for", _rules_for),
        (write_guard, "_rules_of_class", lambda entity: _rules_for(class_mapper(entity))),  # cached
        (full_check, "rules_for", _rules_for),
    ),
    "rows of listeners are not guarded": ((WriteGuard, "check_row", nothing),),
    "inserted rows of listeners are not guarded": ((WriteGuard, "check_row", _check_row),),
    "nobody asks whose transaction it is": (
        (ConnectionEvents, "_has_ended", no),
        (TransactionConnection, "has_ended", no),
    ),
    "a savepoint keeps its locks": ((Ledger, "roll_back_to", lambda *_: []),),
    "no version is raised": ((versions, "_raise_versions", nothing),),
    "a row that changes its class is not guarded": ((FullCheck, "_check_kinds", nothing),),
    "what a listener reads stays": (
        (_RowsByKey, "expire", _expire_once),
        (RowsOfSelect, "expire", _expire_once),
    ),
    "what is added again stays": ((LoadedDocuments, "expire_attached", nothing),),
    "a row that becomes a part is not guarded": ((owners, "_may_be_part", _was_part),),
}
ALONG: Mapping[str, tuple[Axis, tuple[Replaced, ...]]] = {
    "one schema is as good as another": (MAPPED_SCHEMA, ((RowPlace, "is_same", yes),)),
    "nobody asks where a lock goes": (MAPPED_SCHEMA, ((Ledger, "check_place", nothing),)),
    "nobody asks where a write goes": (MAPPED_SCHEMA, ((write_guard, "_check", nothing),)),
}
"""Defects that only the programs along an axis find."""
ONLY_ON_SQLITE = frozenset({"an adopted lock is none"})
NOT_ON_SQLITE = frozenset({"what a listener reads stays"})
WITHOUT_VERSIONS = frozenset(
    {
        "second classes are not guarded",
        "inserted rows of listeners are not guarded",
        "a row that changes its class is not guarded",
    }
)
"""Otherwise the flush is refused too because it raises the version of the header."""


def attack(database: Database, *, versioned: bool = True) -> None:
    """Run the programs."""
    world = World(database, versioned=versioned)
    Attack(world, SEED, shrinks=False).go_on(programs_at_most=PROGRAMS)


def attack_along(world: World, axis: Axis) -> None:
    """Run programs along this axis alone."""
    ways: dict[str, Any] = {"stages": [axis]} if axis in STAGES else {"additions": [axis]}
    Attack(world, SEED, **ways, shrinks=False).go_on(programs_at_most=PROGRAMS)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(0)
@pytest.mark.not_databases("mssql", "mysql", "mariadb", "sqlite-journal")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_attack_finds(database: Database, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    if mutant in ONLY_ON_SQLITE and database.name != "sqlite":
        pytest.skip("its locks are in the SQL")
    if mutant in NOT_ON_SQLITE and database.name == "sqlite":
        pytest.skip("its transaction has the lock before the statement")
    replaced = MUTANTS[mutant]
    if mutant in WITHOUT_VERSIONS:
        replaced += MUTANTS["no version is raised"]
    for where, name, instead in replaced:
        monkeypatch.setattr(where, name, instead)
    with pytest.raises((AssertionError, StaleDataError)):
        attack(database, versioned=mutant not in WITHOUT_VERSIONS)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(0)
@pytest.mark.not_databases("mssql", "sqlite-journal")
@pytest.mark.parametrize("mutant", ALONG)
def test_the_attack_along_its_axis_finds(
    database: Database, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    axis, replaced = ALONG[mutant]
    if database.name not in axis.databases:
        pytest.skip(f"it has no axis {axis.name!r}")
    for where, name, instead in replaced:
        monkeypatch.setattr(where, name, instead)
    with second(database) as there, pytest.raises((AssertionError, StaleDataError)):
        attack_along(World(database, second=there), axis)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(0)
@pytest.mark.not_databases("mssql", "sqlite-journal")
@pytest.mark.parametrize("axis", [*STAGES, *ADDITIONS], ids=lambda axis: axis.name)
def test_the_same_programs_along_an_axis_find_nothing_else(database: Database, axis: Axis) -> None:
    if database.name not in axis.databases:
        pytest.skip("it does not have this axis")
    with second(database) as there:
        attack_along(World(database, second=there), axis)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(0)
@pytest.mark.not_databases("mssql", "mysql", "mariadb", "sqlite-journal")
def test_the_same_programs_find_nothing_else(database: Database) -> None:
    attack(database)
