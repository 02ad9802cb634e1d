"""Anything in place of any argument: an error of ours or of Python's, before anything is sent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from sqlalchemy.exc import NoResultFound, SQLAlchemyError
from sqlalchemy.orm import joinedload, selectinload

from sa_doclock import DocLockError, LockingSession, LockOptions, with_lock
from tests.reliability.fuzz.asking import Sessions, Wish, answer, is_ours
from tests.reliability.fuzz.choices import the_same_always
from tests.reliability.fuzz.entities import CLASSES
from tests.reliability.fuzz.junk import JUNK
from tests.reliability.fuzz.test_by_key import WAYS
from tests.sql.models import Line, Order

junk = st.sampled_from(JUNK)
entities = st.one_of(st.just(Order), st.just(Order), junk)
idents = st.one_of(st.just(1), junk)
locks = st.one_of(st.just(LockOptions.ForUpdate), st.just(LockOptions.SharedRead), junk)
times = st.one_of(
    st.none(), st.none(), junk, st.floats(), st.timedeltas(), st.just(timedelta(seconds=1))
)
options = st.one_of(
    st.just(()),
    st.just(()),
    junk,
    st.lists(st.one_of(junk, st.just(selectinload(Order.lines)), st.just(joinedload(Line.order)))),
)


@pytest.mark.slow
@the_same_always(examples=250)
@given(
    way=st.sampled_from(sorted(WAYS)),
    entity=entities,
    ident=idents,
    lock=locks,
    seconds=times,
    loading=options,
)
def test_a_method_that_is_given_anything(
    served: Sessions,
    way: str,
    entity: Any,
    ident: Any,
    lock: Any,
    seconds: Any,
    loading: Any,
) -> None:
    def ask(session: LockingSession) -> Any:
        return WAYS[way](session, entity, ident, lock, lock_timeout=seconds, options=loading)

    found = answer(served, Wish(CLASSES["plain"], LockOptions.ForUpdate), ask, held=True)
    assert found is not None
    note(f"received {found.received}, raised {found.error!r}")
    error = found.error
    if type(error) in (ValueError, TypeError):
        assert found.received == []
    elif isinstance(error, SQLAlchemyError) and not isinstance(error, DocLockError):
        # a key that the driver cannot send, or that no row has
        assert isinstance(error, NoResultFound) or _is_refused_by_driver(served, ident)
    else:
        assert error is None or isinstance(error, DocLockError)


def _is_refused_by_driver(served: Sessions, ident: Any) -> bool:
    """Return whether Session.get() raises it too."""
    wish = Wish(CLASSES["plain"], LockOptions.None_)
    found = answer(served, wish, lambda session: session.get(Order, ident), held=True)
    return found is not None and found.error is not None


@the_same_always(examples=100)
@given(statement=junk, entity=st.one_of(st.none(), junk), lock=locks)
def test_with_lock_that_is_given_anything(statement: Any, entity: Any, lock: Any) -> None:
    with pytest.raises((DocLockError, ValueError, TypeError)) as raised:
        with_lock(statement, lock, entity)
    assert is_ours(raised.value)
