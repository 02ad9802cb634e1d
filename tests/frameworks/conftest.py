"""One order in a database, a program that uses it, and visitors of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions
from sa_doclock.testing import recorded_locks
from tests.frameworks.program import PATIENT, Base, Program, add_ten, fill, save
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.waits import wait_until_blocked

Enter = Callable[[Callable[[], AbstractContextManager[Any]]], Actor[Any]]
Check = Callable[[Actor[Any], Callable[[Any], int]], None]


@pytest.fixture
def filled(database: Database) -> Database:
    """Return the database with the rows of models.py in it."""
    database.create(Base.metadata)
    with database.engine().begin() as connection:
        fill(connection)
    return database


@pytest.fixture
def session_factory(filled: Database) -> sessionmaker[LockingSession]:
    """Make the sessions of the actors."""
    return sessionmaker(filled.engine(**PATIENT.get(filled.name, {})), class_=LockingSession)


@pytest.fixture
def program(filled: Database) -> Iterator[Program]:
    """Return the database as the program sees it."""
    program = Program(filled)
    yield program
    program.database.close()


@pytest.fixture
def enter_visitor(program: Program) -> Iterator[Enter]:
    """Bring a visitor on, a thread that has a client of the program."""
    cast: list[Actor[Any]] = []

    def enter(client: Callable[[], AbstractContextManager[Any]]) -> Actor[Any]:
        make: Any = client
        cast.append(Actor("visitor", make, program.database))
        return cast[-1]

    yield enter
    for visitor in cast:
        visitor.leave()
        visitor.join()


@pytest.fixture
def check_waits(alice: Actor[LockingSession]) -> Check:
    """Return a function that asserts that a request waits for a holder of order 1.

    The request adds a line of 5 to order 1 and returns its total.  The holder adds one of 10.
    """

    def check(visitor: Actor[Any], request: Callable[[Any], int]) -> None:
        alice.does(add_ten)
        with recorded_locks() as locks:
            queued = visitor.starts(request)
            wait_until_blocked(waiter=visitor, holder=alice, step=queued)
            alice.does(save)
            assert queued.result() == 45
        assert [(one.ident, one.lock, one.outcome) for one in locks] == [
            (1, LockOptions.ForUpdate, "granted")
        ]

    return check
