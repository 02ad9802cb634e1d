"""The members of two wide interfaces do not grow: the state of a session, and the dialect of a database."""

from __future__ import annotations

import sqlalchemy as sa

from sa_doclock import LockingSession
from sa_doclock.core.session import context_of
from sa_doclock.dialects.base import LockStrategy


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
    assert len(found) <= 31, sorted(found)
