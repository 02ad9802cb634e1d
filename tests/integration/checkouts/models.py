"""An order that can be checked out, with its lines; a note that cannot; and expired check-outs."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import checkout_table, document

TABLE = "co_checkouts"


class Base(DeclarativeBase):
    pass


def key() -> Mapped[int]:
    """A primary key chosen by the test."""
    return mapped_column(primary_key=True, autoincrement=False)


@document(checkout=True)
class Order(Base):
    __tablename__ = "co_orders"
    id: Mapped[int] = key()
    total: Mapped[int] = mapped_column(default=0)
    lines: Mapped[list[Line]] = relationship(cascade="all, delete-orphan", order_by="Line.id")


class Line(Base):
    __tablename__ = "co_lines"
    id: Mapped[int] = key()
    order_id: Mapped[int] = mapped_column(sa.ForeignKey("co_orders.id"))
    value: Mapped[int]


@document(checkout=True)
class Article(Base):
    """A text key, which a database may compare case-insensitively."""

    __tablename__ = "co_articles"
    code: Mapped[str] = mapped_column(sa.String(40), primary_key=True)
    total: Mapped[int] = mapped_column(default=0)


@document
class Memo(Base):
    """A document without check-outs."""

    __tablename__ = "co_memos"
    id: Mapped[int] = key()
    text: Mapped[str] = mapped_column(sa.String(40), default="")


CHECKOUTS = checkout_table(Base.metadata, TABLE)


def expire(engine: sa.Engine) -> None:
    """Expire all check-outs, as if they had begun an hour ago."""
    with engine.begin() as connection:
        for row in connection.execute(sa.select(CHECKOUTS)).mappings():
            connection.execute(
                sa.update(CHECKOUTS)
                .where(CHECKOUTS.c.id == row["id"], CHECKOUTS.c.until.is_not(None))
                .values(until=row["since"])
            )


def epochs(engine: sa.Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(sa.select(CHECKOUTS.c.epoch).order_by(CHECKOUTS.c.id)))
