"""Entities that are not declared: their one-to-many collections are their parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions, UnsavedChanges
from tests.integration.documents.loading import Client, Folder, Invoice, Sheet, Stamp
from tests.integration.documents.whole import whole

pytestmark = pytest.mark.quick

ForUpdate = LockOptions.ForUpdate
Run = Callable[..., None]


def test_one_level_is_fresh_and_the_next_is_left_alone(
    session: LockingSession, elsewhere: Run
) -> None:
    folder = session.get_one(Folder, 1)
    stamps = [stamp for sheet in folder.sheets for stamp in sheet.stamps]
    session.commit()
    elsewhere(sa.update(Sheet).values(value=1), sa.update(Stamp).values(value=1))
    assert whole(session.get_entity(Folder, 1, ForUpdate)) == (30, [1, 1])
    assert [stamp.value for stamp in stamps] == [10, 20]


def test_one_level_is_loaded_and_the_next_is_not(session: LockingSession) -> None:
    folder = session.get_document(Folder, 1, ForUpdate)
    assert folder is not None
    assert ["stamps" in sa.inspect(sheet).dict for sheet in folder.sheets] == [False, False]


def test_pending_changes_of_one_level_are_refused(session: LockingSession) -> None:
    sheet, stamp = session.get_one(Sheet, 1), session.get_one(Stamp, 1)
    session.commit()
    stamp.value = 11
    session.get_entity(Folder, 1, ForUpdate)
    session.rollback()
    sheet.value = 11
    with pytest.raises(UnsavedChanges, match="Sheet in its 'sheets'"):
        session.get_entity(Folder, 1, ForUpdate)


def test_documents_in_its_collection_are_no_parts_of_it(session: LockingSession) -> None:
    invoice = session.get_one_entity(Invoice, 1, ForUpdate)
    invoice.total += 1
    client = session.get_one_entity(Client, 1, ForUpdate)
    assert invoice in session.dirty
    assert invoice.total == 31
    client.total += 1
    session.commit()
    assert session.scalar(sa.select(Invoice.total).where(Invoice.id == 1)) == 31


def test_a_held_document_keeps_what_was_loaded(session: LockingSession, sent: list[str]) -> None:
    invoice = session.get_one_entity(Invoice, 1, ForUpdate)
    client = session.get_one_entity(Client, 1, ForUpdate)
    sent.clear()
    assert invoice.total == 30
    assert sent == []
    assert client
