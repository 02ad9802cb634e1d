"""The ways to lock a document and to work on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import object_session, sessionmaker

from sa_doclock import LockingSession, LockOptions, claim_each
from tests.integration.mappings.mapped_document import MappedDocument

Work = Callable[[LockingSession, list[Any]], None]
"""Is given the session that holds the locks, and the headers in the order of their keys."""

Makes = sessionmaker[LockingSession]
Take = Callable[[LockingSession, MappedDocument, list[Any], LockOptions, Work, Makes], None]


class Way(NamedTuple):
    """A way to lock.

    :ivar many: it locks both documents, not only the first.
    :ivar claims: in a separate session.
    """

    method: str
    lock: LockOptions
    take: Take
    many: bool = False
    claims: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.lock.name}"


def _end(session: LockingSession, lock: LockOptions) -> None:
    session.save_changes() if lock is LockOptions.ForUpdate else session.release_locks()


def _by_key(method: str) -> Take:
    def take(
        session: LockingSession,
        mapping: MappedDocument,
        numbers: list[int],
        lock: LockOptions,
        work: Work,
        _: Makes,
    ) -> None:
        ask = getattr(session, method)
        found = ask(mapping.header, mapping.ident(numbers[0]), lock, options=mapping.options())
        work(session, [found])
        _end(session, lock)

    return take


def _by_keys(method: str) -> Take:
    def take(
        session: LockingSession,
        mapping: MappedDocument,
        numbers: list[int],
        lock: LockOptions,
        work: Work,
        _: Makes,
    ) -> None:
        ask = getattr(session, method)
        keys = [mapping.ident(number) for number in reversed(numbers)]
        work(session, ask(mapping.header, keys, lock, options=mapping.options()))
        _end(session, lock)

    return take


def _locked(
    session: LockingSession,
    mapping: MappedDocument,
    numbers: list[int],
    lock: LockOptions,
    work: Work,
    _: Makes,
) -> None:
    key, options = mapping.ident(numbers[0]), mapping.options()
    with session.locked(mapping.header, key, lock, options=options) as found:
        work(session, [found])


def _entity_set(
    session: LockingSession,
    mapping: MappedDocument,
    numbers: list[int],
    lock: LockOptions,
    work: Work,
    _: Makes,
) -> None:
    every = session.entity_set(mapping.header, lock).options(*mapping.options())
    every = every.where(mapping.where(numbers)).order_by(*mapping.keys())
    work(session, list(session.scalars(every)))
    _end(session, lock)


def _claim_each(
    _session: LockingSession,
    mapping: MappedDocument,
    numbers: list[int],
    _lock: LockOptions,
    work: Work,
    makes: Makes,
) -> None:
    statement = sa.select(mapping.header).where(mapping.where(numbers[:1]))
    for claim in claim_each(makes, statement.options(*mapping.options()), lock_timeout=30):
        with claim as row:
            session = object_session(row)
            assert isinstance(session, LockingSession)
            work(session, [row])


_TAKES: Mapping[str, tuple[Take, bool]] = {
    "get_entity": (_by_key("get_entity"), False),
    "get_entities": (_by_keys("get_entities"), True),
    "get_document": (_by_key("get_document"), False),
    "get_documents": (_by_keys("get_documents"), True),
    "entity_set": (_entity_set, True),
    "locked": (_locked, False),
}

WAYS: list[Way] = [
    *(
        Way(method, lock, take, many=many)
        for method, (take, many) in _TAKES.items()
        for lock in (LockOptions.ForUpdate, LockOptions.SharedRead)
    ),
    Way("claim_each", LockOptions.ForUpdate, _claim_each, claims=True),
]
