"""The parts of a session and their hooks."""

from __future__ import annotations

from sa_doclock.core.transaction import SessionPart
from sa_doclock.core.transaction.part import SessionParts


class Named(SessionPart):
    def __init__(self, name: str, called: list[str]) -> None:
        self._name, self._called = name, called

    def before_commit(self) -> None:
        self._called.append(self._name)


class Other(Named):
    def after_commit(self) -> None:
        self._called.append("after")


def test_each_of_several_parts_of_one_kind_is_called() -> None:
    called: list[str] = []
    parts, first = SessionParts(), Named("first", called)
    parts.add(first, Named("second", called), Other("third", called))
    for hook in (*parts.before_commit, *parts.after_commit):
        hook()
    assert called == ["first", "second", "third", "after"]
    parts.remove(first)
    assert len(parts.before_commit) == 2
