"""Actors whose sessions go through one gate."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from functools import partial

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import DocumentGate, LockingSession


@pytest.fixture(autouse=True)
def no_contextvars(request: pytest.FixtureRequest) -> None:
    """Run the test without the ContextVars of earlier tests: gate.run() calls a factory once more if there are any."""
    request.node.obj = partial(Context().run, request.node.obj)


@pytest.fixture
def gate() -> DocumentGate:
    """Make one at which all wait on every database, where else the next waits at the server."""
    return DocumentGate(next_waits_at_server=False)


@pytest.fixture
def session_factory(engine: sa.Engine, gate: DocumentGate) -> sessionmaker[LockingSession]:
    """Make the sessions of the actors, and ``session`` and ``other``."""
    return sessionmaker(engine, class_=LockingSession, gate=gate)


@pytest.fixture
def past_the_gate(engine: sa.Engine) -> Callable[[], LockingSession]:
    """Make sessions on the same engine that know nothing of the gate."""
    return sessionmaker(engine, class_=LockingSession)
