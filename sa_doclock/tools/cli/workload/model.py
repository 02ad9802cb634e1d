"""The documents under stress: a header with a total, and details that add up to it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from .... import document

PREFIX: Final = "doclock_stress_"

# Every process has tables of its own: two runs on one database never meet, and hardly any
# other table has such a name.
_RUN: Final = secrets.token_hex(3)

_ROW_LOCKS: Final = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}

NAMES: Final = tuple(f"N{number}" for number in range(5))
"""The names that a detail may have, each once in a document."""

LARGEST: Final = 9
"""The largest value of a detail; the smallest is 0."""


class Base(DeclarativeBase):
    """The base class of the tables of the stress fixture."""


@document
class Document(Base):
    """The header; its total is the sum of its details.

    A declared document: a session that writes it without locks needs ``guard="off"``.
    """

    __tablename__ = f"{PREFIX}doc_{_RUN}"
    __table_args__ = _ROW_LOCKS

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]
    details: Mapped[list[Detail]] = relationship(cascade="all, delete-orphan")

    def values(self) -> dict[str, int]:
        """The details, read from the database if they are not loaded."""
        return {detail.name: detail.value for detail in self.details}

    def add_up(self) -> None:
        """Make the total right."""
        self.total = sum(detail.value for detail in self.details)


class Detail(Base):
    """One value of a document, under a name that is unique there."""

    __tablename__ = f"{PREFIX}detail_{_RUN}"
    __table_args__ = _ROW_LOCKS

    # Without locks two threads delete the same detail, and SQLAlchemy would warn.
    __mapper_args__ = {"confirm_deleted_rows": False}  # noqa: RUF012  # not a field

    document_id: Mapped[int] = mapped_column(ForeignKey(Document.id), primary_key=True)
    name: Mapped[str] = mapped_column(String(8), primary_key=True)
    value: Mapped[int]


TABLE_NAMES: Final = (Document.__tablename__, Detail.__tablename__)

State = Mapping[str, int]
"""The details of one document: values by name."""
