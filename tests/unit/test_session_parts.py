"""The parts of a session: its family by name, and the hooks of the others."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import create_engine, literal, select
from sqlalchemy.orm import Session

from sa_doclock import LockingSession
from sa_doclock.core.session import context_of
from sa_doclock.core.transaction import Executor, SessionPart
from sa_doclock.core.transaction.part import SessionParts
from sa_doclock.features import install
from sa_doclock.guard.write_guard import WriteGuard


class Named(SessionPart):
    def __init__(self, name: str, called: list[str]) -> None:
        self._name, self._called = name, called

    def before_commit(self) -> None:
        self._called.append(self._name)


class Other(Named):
    def discard(self) -> None:
        self._called.append("after")


def test_each_of_several_parts_of_one_kind_is_called() -> None:
    called: list[str] = []
    parts, first = SessionParts(), Named("first", called)
    parts.add(first, Named("second", called), Other("third", called))
    for hook in (*parts.before_commit, *parts.discard):
        hook()
    assert called == ["first", "second", "third", "after"]
    parts.remove(first)
    assert len(parts.before_commit) == 2
    assert (first in parts.all, parts.ended) == (False, ())


class Interrupted(Named):
    def ended(self, *, committed: bool) -> None:
        super().before_commit()
        if self._name == "first":
            raise KeyboardInterrupt


def test_each_part_is_told_of_the_end_whatever_another_meets() -> None:
    called: list[str] = []
    session = LockingSession(create_engine("sqlite://"))
    parts = context_of(session).parts
    parts.add(Interrupted("first", called), Interrupted("second", called))
    session.begin()
    with pytest.raises(KeyboardInterrupt):
        session.rollback()
    assert called == ["first", "second"]


def test_the_guard_forgets_the_transaction_that_has_ended() -> None:
    session = LockingSession(create_engine("sqlite://"))
    guard = context_of(session).parts.guard
    assert isinstance(guard, WriteGuard)
    session.begin()
    known = guard.memory
    session.rollback()
    assert guard.memory is not known


class Executing:
    """Executes another statement in place of each that may lock."""

    def executor(self, session: Session, statement: Any) -> Executor | None:
        return lambda run, _options, _binds: run(select(literal(2)))


def test_what_adopts_a_statement_executes_it() -> None:
    session = LockingSession(create_engine("sqlite://"), adopt_for_update=False)
    parts, statement = context_of(session).parts, select(literal(1)).with_for_update()
    assert parts.adoption is None
    assert session.scalar(statement) == 1
    parts.adoption = Executing()
    assert session.scalar(statement) == 2


def test_a_session_whose_parts_were_interrupted_makes_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = LockingSession(create_engine("sqlite://"))
    with monkeypatch.context() as patch:
        patch.setattr(install, "WriteGuard", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            session.begin()
    session.rollback()
    assert isinstance(context_of(session).parts.guard, WriteGuard)
