"""The members of two wide interfaces do not grow: the state of a session, and the dialect of a database."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession
from sa_doclock.core.session import context_of
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


def test_the_state_of_a_session_has_few_members() -> None:
    with LockingSession(sa.create_engine("sqlite://")) as session:
        context = context_of(session)
        found = members(type(context), private=True) | vars(context).keys()
    assert len(found) <= 63, sorted(found)


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
