"""The versions in the tables of the stress fixture: written there and read back.

A value names its version: ``writer * 100 + number``, 0 for the first.  A header's total is such a
value too; one detail, the balance, makes the details add up to it, and is no item of the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_doclock.tools.cli.workload.tables import Detail, Document
from tests.reliability.history.record import ABSENT, Item, Read, Transaction, Version, Write

BALANCE = "BALANCE"


def first_state(names: Iterable[str]) -> dict[str, int]:
    """The details of a document in which nothing was written yet."""
    return dict.fromkeys((*names, BALANCE), 0)


def note(done: Transaction, document: Document, names: Iterable[str]) -> None:
    """Record that the transaction has read this document, and which details are not there."""
    _note(done, document.id, document.total, document.values(), names)


def read_again(
    session: Session, done: Transaction, documents: Sequence[int], names: Iterable[str]
) -> None:
    """Read from the database, past the objects that the session has."""
    headers = select(Document.id, Document.total).where(Document.id.in_(documents))
    details = select(Detail.document_id, Detail.name, Detail.value)
    totals = session.execute(headers).all()
    values = session.execute(details.where(Detail.document_id.in_(documents))).all()
    for number, total in totals:
        found = {name: value for document, name, value in values if document == number}
        _note(done, number, total, found, names)


def _note(
    done: Transaction, number: int, total: int, values: Mapping[str, int], names: Iterable[str]
) -> None:
    done.operations.append(Read(Item(number), version_of(total)))
    for name in names:
        version = version_of(values[name]) if name in values else ABSENT
        done.operations.append(Read(Item(number, name), version))


def set_total(done: Transaction, document: Document, nth: int) -> None:
    """Write the header."""
    version = Version(done.number, nth)
    done.operations.append(Write(Item(document.id), version, version_of(document.total)))
    document.total = value_of(version)


def set_detail(done: Transaction, document: Document, name: str, nth: int) -> None:
    """Write a detail; insert it if it is not there."""
    version, detail = Version(done.number, nth), _detail(document, name)
    over = version_of(detail.value) if detail else ABSENT
    done.operations.append(Write(Item(document.id, name), version, over))
    if detail:
        detail.value = value_of(version)
    else:
        document.details.append(Detail(name=name, value=value_of(version)))


def delete_detail(done: Transaction, document: Document, name: str, nth: int) -> None:
    """Delete a detail if it is there."""
    if detail := _detail(document, name):
        version, over = Version(done.number, nth), version_of(detail.value)
        done.operations.append(Write(Item(document.id, name), version, over, gone=True))
        document.details.remove(detail)


def balance(document: Document) -> None:
    """Make the details add up to the total."""
    found = _detail(document, BALANCE)
    assert found is not None  # nobody deletes it
    found.value += document.total - sum(document.values().values())


def final_state(engine: Engine) -> dict[Item, Version]:
    """Return the state of the database when all is quiet."""
    with engine.connect() as connection:
        headers = connection.execute(select(Document.id, Document.total)).all()
        details = connection.execute(
            select(Detail.document_id, Detail.name, Detail.value).where(Detail.name != BALANCE)
        ).all()
    return {Item(number): version_of(total) for number, total in headers} | {
        Item(number, name): version_of(value) for number, name, value in details
    }


def value_of(version: Version) -> int:
    return version.writer * 100 + version.number


def version_of(value: int) -> Version:
    return Version(*divmod(value, 100))


def _detail(document: Document, name: str) -> Detail | None:
    return next((one for one in document.details if one.name == name), None)
