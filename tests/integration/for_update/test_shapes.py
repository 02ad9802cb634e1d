"""Many shapes of statements: where one has run, a second connection finds the row held."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import CompileError, DBAPIError, SQLAlchemyError

from sa_doclock import LockingSession, LockNotSupported
from tests.integration.for_update.shapes import ORDERS, Shape, all_shapes
from tests.support.databases import MATRIX, Database
from tests.support.models import Order

pytestmark = [
    pytest.mark.read_committed,
    pytest.mark.filterwarnings("ignore:SELECT statement has a cartesian"),  # some shapes are
]

_ROW = sa.select(ORDERS.c.id).where(ORDERS.c.id == 1).with_for_update(nowait=True)
_IN_A_RUN = 50
_PARTS = 3


class Prober:
    """A second connection, which asks for the row without waiting."""

    def __init__(self, database: Database) -> None:
        self._is_sqlite = database.name == "sqlite"
        at_once = {"connect_args": {"timeout": 0}} if self._is_sqlite else {}
        self._connection = database.engine(**at_once).connect()
        self.close = self._connection.close

    def finds_held(self, session: LockingSession, shape: Shape) -> bool:
        """Return whether the row is held; a read on SQLite is a transaction that reads a snapshot."""
        if self._is_sqlite and shape.is_read:
            driver: Any = session.connection().connection.driver_connection
            return bool(driver.in_transaction)
        try:
            if self._is_sqlite:
                self._connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                self._connection.execute(_ROW).all()
        except DBAPIError:
            return True
        finally:
            self._connection.rollback()
        return False


def _outcome(shape: Shape, session: LockingSession, prober: Prober) -> str:
    """Return what has come of the statement: "held", "refused", or what is wrong."""
    try:
        shape.run(session)
    except LockNotSupported:
        return "refused"
    except (DBAPIError, CompileError):
        return "not on this server"
    # Python sometimes raises KeyError in place of the TypeError for an argument that is given twice,
    # as SQLAlchemy gives it for FOR UPDATE OF a subquery that has one too.
    except (SQLAlchemyError, AttributeError, TypeError, KeyError) as error:
        return f"not SQLAlchemy's: {error}"
    if not prober.finds_held(session, shape):
        return "WRONG: not held"
    if shape.is_listed and (Order, (1,)) not in session.held_locks:
        return "WRONG: not listed"
    return "held"


def _outcomes(
    shapes: Iterable[Shape], make: Callable[[], LockingSession], database: Database
) -> dict[Shape, str]:
    outcomes: dict[Shape, str] = {}
    with closing(Prober(database)) as prober:
        for shape in shapes:
            with make() as session:
                outcomes[shape] = _outcome(shape, session, prober)
                session.rollback()
                if prober.finds_held(session, shape._replace(kind="for update")):
                    outcomes[shape] += ", WRONG: held afterwards"
    return outcomes


def _wrong_shapes(outcomes: dict[Shape, str]) -> str:
    return "\n".join(f"{shape}: {came}" for shape, came in outcomes.items() if "WRONG" in came)


def test_some_shapes(session_factory: Callable[[], LockingSession], documents: Database) -> None:
    seed = random.SystemRandom().randrange(2**32)
    shapes = random.Random(seed).sample([*all_shapes()], _IN_A_RUN)
    outcomes = _outcomes(shapes, session_factory, documents)
    assert not _wrong_shapes(outcomes), f"seed {seed}\n{_wrong_shapes(outcomes)}"


@pytest.mark.slow
@pytest.mark.parametrize("part", [_PARTS, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_all_shapes(
    session_factory: Callable[[], LockingSession], documents: Database, part: int
) -> None:
    """CI takes every third shape on each database, and others on the next database."""
    first = [*MATRIX].index(documents.column) % part
    outcomes = _outcomes([*all_shapes()][first::part], session_factory, documents)
    assert not _wrong_shapes(outcomes), _wrong_shapes(outcomes)
    came = [*outcomes.values()]
    assert came.count("held") > 200 / part, {one: came.count(one) for one in {*came}}
