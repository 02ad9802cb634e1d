"""A text that would be a style, a link, an emoji, a colour and a new line, and a table of that name."""

from __future__ import annotations

from typing import Final

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import document

HOSTILE: Final = (
    "[/x] [bold] [link=http://x] :bug: \x1b[31m\x1b]8;;http://x\x07 \x9b2J\u202e \r\nok %s {0}"
)


class Base(DeclarativeBase):
    pass


@document
class Strange(Base):
    __tablename__ = HOSTILE
    id: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[int] = mapped_column(HOSTILE, default=0)
