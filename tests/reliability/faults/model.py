"""The documents that are changed under faults, and the marks that every update leaves.

``total`` is the sum of the values of the sheets, and of all deltas in the marks of the folder.
``writer`` is the number of the attempt that wrote a row last, for the history.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import document

FOLDERS = (1, 2, 3, 4)
SHEETS = 3  # in each folder


class Base(DeclarativeBase):
    pass


@document
class Folder(Base):
    __tablename__ = "fl_folder"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int] = mapped_column(default=0)
    writer: Mapped[int] = mapped_column(default=0)
    sheets: Mapped[list[Sheet]] = relationship(
        cascade="all, delete-orphan", order_by="Sheet.number"
    )


class Sheet(Base):
    __tablename__ = "fl_sheet"
    folder_id: Mapped[int] = mapped_column(ForeignKey(Folder.id), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    value: Mapped[int] = mapped_column(default=0)
    writer: Mapped[int] = mapped_column(default=0)


class Mark(Base):
    """An attempt's change of a folder; in the transaction that made it, and never changed again."""

    __tablename__ = "fl_mark"
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    folder_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    update: Mapped[int] = mapped_column("update_number")
    delta: Mapped[int]


def fill(connection: sa.Connection) -> None:
    """Put the folders in the tables, empty of everything else."""
    for table in reversed(Base.metadata.sorted_tables):
        connection.execute(table.delete())
    rows = [{"id": folder, "total": 0, "writer": 0} for folder in FOLDERS]
    connection.execute(sa.insert(Folder), rows)
    sheets = [
        {"folder_id": folder, "number": number, "value": 0, "writer": 0}
        for folder in FOLDERS
        for number in range(SHEETS)
    ]
    connection.execute(sa.insert(Sheet), sheets)
