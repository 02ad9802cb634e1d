"""Rows of documents in memory, and what the library says of their headers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import create_engine, event, inspect
from sqlalchemy.orm import Session

from sa_doclock.core.documents.mapping import mapper_of
from sa_doclock.core.documents.owners import HeaderResolver
from tests.integration.documents.models import Base
from tests.integration.documents.rows import refill

Found = set[tuple[Any, ...]]


@contextmanager
def in_memory() -> Iterator[Session]:
    """Open a plain session on the rows of tests/integration/documents/rows.py."""
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        Base.metadata.create_all(connection)
        refill(connection)
    with Session(engine, autoflush=False) as session:
        yield session
    engine.dispose()


def recorded(session: Session) -> list[str]:
    """Note what the session sends from now on."""
    noted: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        noted.append(statement)

    event.listen(session.get_bind(), "before_cursor_execute", note)
    return noted


def headers_of(session: Session, root: type[Any], thing: object, *, ask: bool = False) -> Found:
    """Return what HeaderResolver says; asking or not."""
    return set(HeaderResolver(session, mapper_of(root), ask=ask).headers(inspect(thing)))
