"""A warning is about the line of the program, whoever gives it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any
from unittest.mock import create_autospec

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import SAWarning
from sqlalchemy.orm import Session

from sa_doclock import LockingSession
from sa_doclock.caller import warn_program
from tests.support.models import Customer


class Note(UserWarning):
    """The subject of a warning."""


def own_warning() -> None:
    warn_program("look", Note)


def python_warning() -> None:
    warnings.warn("look", Note, stacklevel=1)


def in_module(name: str, function: Callable[[], None]) -> Callable[[], None]:
    """Return the function as if it had been written in another module."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__, {**globals(), "__name__": name})


each_warning = pytest.mark.parametrize("warn", [own_warning, python_warning])


@each_warning
@pytest.mark.parametrize(("module", "heard"), [("shop.orders", 0), ("shop.stock", 1)])
def test_a_filter_by_module_is_obeyed(warn: Any, module: str, heard: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", category=Note, module=r"shop\.orders$")
        in_module(module, warn)()
    assert len(caught) == heard


@each_warning
def test_once_for_each_line_is_once(warn: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        reported = in_module("shop.orders", warn)
        reported()
        reported()
    assert len(caught) == 1


@pytest.fixture
def engine() -> Iterator[sa.Engine]:
    engine = sa.create_engine("sqlite://")
    Customer.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("kind", [Session, LockingSession])
def test_what_sqlalchemy_warns_of_in_a_commit(engine: sa.Engine, kind: type[Session]) -> None:
    with kind(engine) as session:
        session.add(Customer(id=1, name="Ann"))
        session.flush()
        known = session.get_one(Customer, 1)
        session.add(Customer(id=1, name="Zoe"))  # the same key again
        with (
            pytest.warns(SAWarning, match="conflicts with persistent instance") as caught,
            pytest.raises(sa.exc.IntegrityError),
        ):
            session.commit()
        del known
    assert {warning.filename for warning in caught} == {__file__}


class Audited(LockingSession):
    """A session that does more when it commits."""

    def commit(self) -> None:
        self.info["audited"] = True
        super().commit()


@pytest.mark.parametrize(
    "commit",
    [
        lambda session: session.commit(),
        lambda session: type(session).commit(session),
        LockingSession.commit,
    ],
    ids=["of the session", "of its class", "of LockingSession"],
)
@pytest.mark.parametrize("kind", [LockingSession, Audited])
def test_commit_is_a_method_like_others(
    engine: sa.Engine, kind: type[LockingSession], commit: Callable[[LockingSession], None]
) -> None:
    with kind(engine) as session:
        session.add(Customer(id=1, name="Ann"))
        commit(session)
        assert not session.in_transaction()
        assert session.get(Customer, 1) is not None


def test_a_subclass_may_do_more_in_it(engine: sa.Engine) -> None:
    with Audited(engine) as session:
        session.commit()
        assert session.info == {"audited": True}


def test_a_mock_of_a_session_can_commit() -> None:
    mock = create_autospec(LockingSession, instance=True)
    mock.commit()
    mock.commit.assert_called_once_with()
