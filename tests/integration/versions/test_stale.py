"""``version=``: StaleDocument if the document is newer than the version the caller read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import LockingSession, LockMisuse, LockOptions, StaleDocument
from tests.integration.versions.models import KINDS, Numbered, NumberedLine

pytestmark = pytest.mark.quick

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
each_kind = pytest.mark.parametrize("header", [header for header, _ in KINDS])


def take(block: Any) -> Any:
    """Enter and leave the block."""
    with block as found:
        return found


WAYS: dict[str, Callable[..., Any]] = {
    "get_entity": lambda s, e, v: s.get_entity(e, 1, ForUpdate, version=v),
    "get_one_entity": lambda s, e, v: s.get_one_entity(e, 1, ForUpdate, version=v),
    "get_document": lambda s, e, v: s.get_document(e, 1, ForUpdate, version=v),
    "get_one_document": lambda s, e, v: s.get_one_document(e, 1, ForUpdate, version=v),
    "shared": lambda s, e, v: s.get_entity(e, 1, SharedRead, version=v),
    "plain": lambda s, e, v: s.get_entity(e, 1, version=v),
    "locked": lambda s, e, v: take(s.locked(e, 1, version=v)),
    "locked_document": lambda s, e, v: take(s.locked_document(e, 1, version=v)),
    "locked select": lambda s, e, v: take(
        s.locked(s.entity_set(e, ForUpdate).where(e.id == 1), version=v)
    ),
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def version_of(session: LockingSession, header: Any) -> Any:
    """Return the version shown to a user, and end the transaction."""
    version = session.get_one(header, 1).version
    session.rollback()
    return version


def change(session: LockingSession, header: Any) -> None:
    """Change the header, as another user does."""
    with session.locked(header, 1) as document:
        document.total += 1


@each_kind
@each_way
def test_a_version_that_is_still_true_is_locked(
    session: LockingSession, other: LockingSession, header: Any, way: Any
) -> None:
    seen = version_of(other, header)
    assert way(session, header, seen).version == seen


@each_kind
@each_way
def test_a_newer_document_is_refused(
    session: LockingSession, other: LockingSession, header: Any, way: Any
) -> None:
    seen = version_of(session, header)
    change(other, header)
    with pytest.raises(StaleDocument, match="the document is at version") as caught:
        way(session, header, seen)
    assert caught.value.expected == seen
    assert caught.value.found == version_of(other, header) != seen
    assert caught.value.entity is header
    assert not caught.value.retryable
    assert not session.in_transaction() or way is WAYS["plain"]
    assert not session.held_locks


def test_the_error_names_the_document(session: LockingSession) -> None:
    with pytest.raises(
        StaleDocument, match=r"^Numbered 1 FOR UPDATE on \w+: the document is at version 1,"
    ):
        session.get_entity(Numbered, 1, ForUpdate, version=7)


def test_in_an_open_transaction_the_lock_is_kept(session: LockingSession) -> None:
    with session.begin():
        with pytest.raises(StaleDocument):
            session.get_entity(Numbered, 1, ForUpdate, version=7)
        assert list(session.held_locks) == [(Numbered, (1,))]
        document = session.get_one_entity(Numbered, 1, ForUpdate)
        document.total = 99  # the user saw the newer state, and confirmed
        with pytest.raises(StaleDocument):  # held already
            session.get_entity(Numbered, 1, ForUpdate, version=7)
    assert session.get_one(Numbered, 1).total == 99


def test_a_document_that_is_gone_is_none(session: LockingSession) -> None:
    assert session.get_entity(Numbered, 99, ForUpdate, version=1) is None


def test_a_version_of_another_type_is_refused_before_anything_is_sent(
    session: LockingSession,
) -> None:
    for version in ("1", 1.5):
        with pytest.raises(TypeError, match="the version of Numbered is of type int"):
            session.get_entity(Numbered, 1, ForUpdate, version=version)
    assert not session.in_transaction()


def test_a_class_without_a_version_is_refused_before_anything_is_sent(
    session: LockingSession,
) -> None:
    with pytest.raises(LockMisuse, match="NumberedLine has no version"):
        session.get_entity(NumberedLine, 1, ForUpdate, version=1)
    assert not session.in_transaction()


# --------------------------------------------------------------------------------------------------
# A with_for_update() of a versioned class: get() compares, as in SQLAlchemy; a select is fresh.


@pytest.fixture
def _read_before(session: LockingSession, other: LockingSession) -> None:
    """Let the session keep the objects that it read before another session changed the header."""
    session.expire_on_commit = False
    session.info["kept"] = session.get_one(Numbered, 1)
    session.commit()
    change(other, Numbered)


@pytest.mark.usefixtures("_read_before")
def test_get_says_that_the_object_is_old(session: LockingSession) -> None:
    with pytest.raises(StaleDataError):
        session.get(Numbered, 1, with_for_update=True)


@pytest.mark.usefixtures("_read_before")
def test_a_select_reads_the_version_again(session: LockingSession, other: LockingSession) -> None:
    kept = session.info["kept"]
    session.scalars(sa.select(Numbered).where(Numbered.id == 1).with_for_update()).one().total += 1
    version = kept.version
    session.commit()
    assert kept.version == version + 1
    assert other.get_one(Numbered, 1).total == kept.total
