"""The attack finds each of these defects within 300 programs of a fixed seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, class_mapper
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import versions
from sa_doclock.adoption import adopted_rows, unread_rows
from sa_doclock.adoption.adopted_rows import AdoptedRows
from sa_doclock.adoption.loaded_headers import LoadedHeaders
from sa_doclock.core import same_tables
from sa_doclock.core.documents import owners, takes
from sa_doclock.core.ledger import Ledger, RowPlace
from sa_doclock.core.loading import DocumentIndex, LoadedDocuments, Unreadable, role_of
from sa_doclock.core.locking.by_key import _RowsByKey
from sa_doclock.core.locking.select import RowsOfSelect
from sa_doclock.core.transaction import make_plan
from sa_doclock.core.transaction.connection_events import ConnectionEvents
from sa_doclock.core.transaction.lock_transaction import LockTransaction
from sa_doclock.core.transaction.transaction_connection import (
    TransactionConnection,
    TransactionConnections,
)
from sa_doclock.features.routing import BindRouter
from sa_doclock.guard import full_check, write_guard
from sa_doclock.guard.full_check import FullCheck
from sa_doclock.guard.targets import Way
from sa_doclock.guard.write_guard import WriteGuard
from tests.reliability.attack.axes import ADDITIONS, STAGES
from tests.reliability.attack.axes.axis import FOREIGN_END, FORK, PLAIN, Axis
from tests.reliability.attack.axes.second import (
    IDENTITY_TOKEN,
    LEVEL,
    LOADER_OPTIONS,
    MAPPED_SCHEMA,
    REPLICA,
    SECOND_ENGINE,
    SECOND_TABLE,
    SET_SCHEMA,
)
from tests.reliability.attack.programs import Attack
from tests.reliability.attack.world import Again, World, second
from tests.support.databases import Database

PROGRAMS = 300
SEED = 35


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def yes(*_: Any, **__: Any) -> bool:
    return True


def no(*_: Any, **__: Any) -> bool:
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


def _reads_all(headers: Any, options: Any, **_: bool) -> Any:
    return _real_prepare(headers, options, leaves_out=False)


def _check_row(guard: Any, state: Any, way: Way) -> None:
    if way is not Way.INSERT:
        _real_check_row(guard, state, way)


def _was_part(state: Any, part: Any) -> bool:
    before = {**state.dict, **state.committed_state}
    return takes(part.discriminators, before)


def _translated_by_name(table: Any, *options: Any) -> Any:
    return _real_translated(sa.Table(table.name, sa.MetaData(), schema=table.schema), *options)


def _is_other_metadata(_: Any, root: Any, table: Any, __: Any) -> bool:
    return getattr(table, "metadata", None) is not root.local_table.metadata


_real_translated = same_tables.translated_schema
_real_expire, _real_expire_of_set = _RowsByKey.expire, RowsOfSelect.expire
_real_expire_fresh, _real_expire_one = DocumentIndex._expire_fresh, DocumentIndex._expire
_real_rules_for = write_guard.rules_for
_real_prepare = LoadedHeaders.prepare
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
ALONG: Mapping[str, tuple[tuple[Axis, ...], tuple[Replaced, ...]]] = {
    "one schema is as good as another": ((MAPPED_SCHEMA,), ((RowPlace, "is_same", yes),)),
    "nobody asks where a lock goes": ((MAPPED_SCHEMA,), ((Ledger, "check_place", nothing),)),
    "nobody asks where a write goes": ((SECOND_ENGINE,), ((write_guard, "_check", nothing),)),
    "nobody asks for the schema": (
        (SET_SCHEMA,),
        ((TransactionConnection, "_check_schema", nothing),),
    ),
    "a lock chooses no database": ((REPLICA,), ((BindRouter, "bound", nothing),)),
    "a read finds no lock": ((REPLICA,), ((BindRouter, "_pin_at", nothing),)),
    "a map moves a table() too": (
        (MAPPED_SCHEMA, SECOND_TABLE),
        ((same_tables, "translated_schema", _translated_by_name),),
    ),
    "the engine of the class is another database once a lock is elsewhere": (
        (SECOND_ENGINE, SECOND_TABLE),
        tuple((one, "is_of_other_model", _is_other_metadata) for one in (same_tables, write_guard)),
    ),
    "a table is its object": ((PLAIN, SECOND_TABLE), ((same_tables, "_tables_by_name", dict),)),
    "rows that are not returned stay": (
        (PLAIN, LOADER_OPTIONS),
        tuple(
            (one, "expire_unread", lambda *_: Unreadable()) for one in (unread_rows, adopted_rows)
        ),
    ),
    "what is left out stays": ((PLAIN, LOADER_OPTIONS), ((LoadedHeaders, "prepare", _reads_all),)),
    "the ledger of a transaction that has ended is the next one's": (
        (PLAIN, FOREIGN_END),
        ((Ledger, "renewed", lambda ledger: ledger),),
    ),
    "nobody asks for the level": (
        (LEVEL, FOREIGN_END),
        ((TransactionConnections, "is_level_in_doubt", no),),
    ),
    "an object under another token stays": (
        (PLAIN, IDENTITY_TOKEN),
        ((DocumentIndex, "refuse_other_tokens", nothing),),
    ),
    "a child has its parent's transaction": (
        (PLAIN, FORK),
        ((LockTransaction, "leave_to_parent", nothing),),
    ),
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
    world = World(database, versioned=versioned)
    Attack(world, SEED, shrinks=False).go_on(programs_at_most=PROGRAMS)


def attack_along(database: Database, axes: Sequence[Axis]) -> None:
    """Run programs along these axes only."""
    if not all(database.name in axis.databases for axis in axes):
        pytest.skip("it does not have this axis")
    with second(database) as there:
        attack = Attack(
            World(database, second=there), SEED, stages=axes[:1], additions=axes[1:], shrinks=False
        )
        attack.go_on(programs_at_most=PROGRAMS)


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
    axes, replaced = ALONG[mutant]
    for where, name, instead in replaced:
        monkeypatch.setattr(where, name, instead)
    with pytest.raises((AssertionError, StaleDataError)):
        attack_along(database, axes)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(0)
@pytest.mark.not_databases("mssql", "sqlite-journal")
@pytest.mark.parametrize("axis", [*STAGES, *ADDITIONS], ids=lambda axis: axis.name)
def test_the_same_programs_along_an_axis_find_nothing_else(database: Database, axis: Axis) -> None:
    attack_along(database, [axis] if axis in STAGES else [PLAIN, axis])


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(0)
@pytest.mark.not_databases("mssql", "mysql", "mariadb", "sqlite-journal")
def test_the_same_programs_find_nothing_else(database: Database) -> None:
    attack(database)
