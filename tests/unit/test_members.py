"""The members of wide interfaces do not grow: the state of a session, and the dialect of a database."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession
from sa_doclock.core.lock_request import LockCalls
from sa_doclock.core.session import context_of
from sa_doclock.core.session.hooks import TransactionEvents
from sa_doclock.core.transaction import LockContext
from sa_doclock.core.transaction.state import TransactionState
from sa_doclock.dialects import FoundServer
from sa_doclock.dialects.base import LockStrategy
from tests.docs.roles import ROLES

#: The objects of a dialect, by their names.
PARTS: dict[str, type] = {**ROLES, "compatible": FoundServer}
#: What has more subjects than eight: a row for each error, each hint and each property of a level.
MOST = {"errors": 16, "statements": 13, "isolation": 10}


def members(kind: type, *, private: bool) -> set[str]:
    """Return the names that a class and its bases have or declare, without those of Python."""
    names = {
        name
        for base in kind.__mro__[:-1]
        for name in (*vars(base), *vars(base).get("__annotations__", {}))
        if not name.startswith(("__", "_abc_"))
    }
    return {name for name in names if private or not name.startswith("_")}


def test_each_part_of_the_state_of_a_session_has_few_members() -> None:
    with LockingSession(sa.create_engine("sqlite://")) as session:
        context = context_of(session)
        parts = [context, context.transaction, session._transaction_events, context.calls]
        found = {type(one): members(type(one), private=True) | vars(one).keys() for one in parts}
    counted = {kind: len(names) for kind, names in found.items()}
    most = {LockContext: 15, TransactionState: 26, TransactionEvents: 16, LockCalls: 5}
    assert all(counted[kind] <= number for kind, number in most.items()), found


def test_the_interface_of_a_dialect_has_few_members() -> None:
    found = members(LockStrategy, private=False)
    assert len(found) <= 33, sorted(found)


@pytest.mark.parametrize("name", PARTS)
def test_each_object_of_a_dialect_has_one_subject(name: str) -> None:
    found = members(PARTS[name], private=False)
    assert len(found) <= MOST.get(name, 8), sorted(found)


def test_every_object_of_a_dialect_is_counted() -> None:
    kinds = get_type_hints(LockStrategy)
    objects = {name for name, kind in kinds.items() if _is_of_dialects(kind)}
    assert objects == PARTS.keys()


def _is_of_dialects(kind: Any) -> bool:
    return any(
        getattr(one, "__module__", "").startswith("sa_doclock.dialects")
        for one in (kind, *get_args(kind), *(o for a in get_args(kind) for o in get_args(a)))
    )
