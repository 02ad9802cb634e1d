"""The tables for one part of the proof, created before it and dropped after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "doclock_proof"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]


@contextmanager
def tables(engine: sa.Engine) -> Iterator[None]:
    """Create the tables, with two rows, for the block."""
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    try:
        with engine.begin() as connection:
            connection.execute(sa.insert(Row), [{"id": 1, "total": 1}, {"id": 2, "total": 1}])
        yield
    finally:
        Base.metadata.drop_all(engine)
