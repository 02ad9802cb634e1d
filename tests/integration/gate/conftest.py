"""Actors whose sessions go through one gate."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import DocumentGate, LockingSession


@pytest.fixture
def gate() -> DocumentGate:
    """Make a gate that queues on every database, instead of letting the next wait at the server."""
    return DocumentGate(next_waits_at_server=False)


@pytest.fixture
def session_factory(engine: sa.Engine, gate: DocumentGate) -> sessionmaker[LockingSession]:
    """Return the factory for ``session``, ``other`` and the actors' sessions."""
    return sessionmaker(engine, class_=LockingSession, gate=gate)


@pytest.fixture
def past_the_gate(engine: sa.Engine) -> Callable[[], LockingSession]:
    """Return a factory on the same engine, without the gate."""
    return sessionmaker(engine, class_=LockingSession)
