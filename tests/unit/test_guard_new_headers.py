"""New headers whose keys the database gives, in one flush with rows that need the full check."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, ForeignKey, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import LockingSession, UnlockedWrite, UnlockedWriteWarning, document


class Base(DeclarativeBase):
    """Tables of these tests alone."""


@document(parts=["pages"])
class Book(Base):
    __tablename__ = "nh_book"
    id: Mapped[int] = mapped_column(primary_key=True)
    pages: Mapped[list[Page]] = relationship()


class Page(Base):
    __tablename__ = "nh_page"
    id: Mapped[int] = mapped_column(primary_key=True)
    book_id: Mapped[int | None] = mapped_column(ForeignKey("nh_book.id"))
    number: Mapped[int] = mapped_column(default=0)


@document(parts=["tracks"])
class Album(Base):
    __tablename__ = "nh_album"
    id: Mapped[int] = mapped_column(primary_key=True)
    tracks: Mapped[list[Track]] = relationship()


class Track(Base):
    __tablename__ = "nh_track"
    id: Mapped[int] = mapped_column(primary_key=True)
    album_id: Mapped[int | None] = mapped_column(ForeignKey("nh_album.id"))


@pytest.fixture
def engine() -> Engine:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with LockingSession(engine) as session:
        session.add_all([Book(id=1, pages=[Page(id=1)]), Track(id=1), Page(id=2)])
        session.commit()
    return engine


def test_they_are_new_after_a_row_that_was_warned_of(engine: Engine) -> None:
    with LockingSession(engine, guard="warn", autoflush=False) as session:
        session.get_one(Page, 1).number = 7
        session.add_all([Album(tracks=[session.get_one(Track, 1)]), Book(pages=[Page()])])
        with pytest.warns(UnlockedWriteWarning) as found:
            session.flush()
    assert [str(one.message).partition(" without")[0] for one in found] == [
        "Page rows would be changed in 'number'"
    ]


def test_they_are_new_one_class_after_another(engine: Engine) -> None:
    with LockingSession(engine, guard="raise") as session:
        page, track = session.get_one(Page, 2), session.get_one(Track, 1)
        session.add_all([Album(tracks=[track]), Book(pages=[page, Page()])])
        session.flush()
        assert track.album_id is not None
        assert page.book_id is not None


def test_a_key_that_a_listener_has_replaced_is_no_new_one(engine: Engine) -> None:
    with LockingSession(engine, guard="raise") as session:
        page, track = session.get_one(Page, 2), session.get_one(Track, 1)
        session.add_all([Album(tracks=[track]), Book(id=1)])

        def replace(_mapper: object, _connection: object, book: Book) -> None:
            book.id = 9

        event.listen(Book, "before_insert", replace)
        try:
            page.book_id = 1
            with pytest.raises(UnlockedWrite):
                session.flush()
        finally:
            event.remove(Book, "before_insert", replace)
