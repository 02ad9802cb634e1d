"""The declared document of the machine, and what is done to it through SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import ForeignKey, inspect
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    relationship,
    selectinload,
)

from sa_doclock import LockingSession, document
from tests.reliability.model_based.engines import Action, Doc, Docs, Kind
from tests.support.databases import Database

T = TypeVar("T")


class Base(DeclarativeBase):
    """Tables of the machine's own."""


def _key() -> Mapped[int]:
    return mapped_column(primary_key=True, autoincrement=False)


@document(parts=("lines", "lines.taxes"))
class Order(Base):
    __tablename__ = "sm_order"
    id: Mapped[int] = _key()
    total: Mapped[int]
    lines: Mapped[list[Line]] = relationship(back_populates="order", cascade="all, delete-orphan")


class Line(Base):
    __tablename__ = "sm_line"
    id: Mapped[int] = _key()
    order_id: Mapped[int] = mapped_column(ForeignKey("sm_order.id"), index=True)
    value: Mapped[int]
    order: Mapped[Order] = relationship(back_populates="lines")
    taxes: Mapped[list[Tax]] = relationship(back_populates="line", cascade="all, delete-orphan")


class Tax(Base):
    __tablename__ = "sm_tax"
    id: Mapped[int] = _key()
    line_id: Mapped[int] = mapped_column(ForeignKey("sm_line.id"), index=True)
    value: Mapped[int]
    line: Mapped[Line] = relationship(back_populates="taxes")


TABLES: tuple[type[Base], ...] = (Order, Line, Tax)

# A wait is a failure: with everything asked for at once, nobody has to.
_NEVER_WAIT: dict[str, Any] = {
    "sqlite": {"timeout": 0},
    "postgresql": {"options": "-c lock_timeout=2000"},
}


class World:
    """One database, and a connection that looks at it from outside."""

    def __init__(self, database: Database) -> None:
        self.database = database
        database.create(Base.metadata)
        self.engine = database.engine(connect_args=_NEVER_WAIT[database.name])
        self._observer = database.observer().connect()

    def close(self) -> None:
        self._observer.close()

    def session(self) -> LockingSession:
        return LockingSession(self.engine, autoflush=False)

    def refill(self, docs: Docs) -> None:
        with self.engine.begin() as connection:
            for entity in reversed(TABLES):
                connection.execute(sa.delete(entity))
            with Session(connection, join_transaction_mode="rollback_only") as session:
                for number, doc in docs.items():
                    session.add(made(number, doc))
                session.flush()
                session.commit()

    def committed(self) -> dict[int, Doc]:
        """The documents as everybody else sees them."""
        return read_rows(self._observer)


def made(number: int, doc: Doc) -> Order:
    """A new document."""
    lines = [
        Line(
            id=line,
            value=value,
            taxes=[Tax(id=tax, value=v) for tax, (at, v) in doc.taxes.items() if at == line],
        )
        for line, value in doc.lines.items()
    ]
    return Order(id=number, total=doc.total, lines=lines)


def read_rows(bind: sa.Connection | Session) -> dict[int, Doc]:
    """All documents, read by statements that know nothing of objects."""
    headers = bind.execute(sa.select(Order.id, Order.total)).all()
    lines = bind.execute(sa.select(Line.id, Line.order_id, Line.value)).all()
    taxes = bind.execute(sa.select(Tax.id, Tax.line_id, Tax.value)).all()
    of_line = {line: order for line, order, _ in lines}
    return {
        header: Doc(
            total,
            {line: value for line, order, value in lines if order == header},
            {tax: (line, value) for tax, line, value in taxes if of_line[line] == header},
        )
        for header, total in headers
    }


def plain(session: Session, number: int) -> Order | None:
    """Read without a lock; always sends a statement."""
    whole = selectinload(Order.lines).selectinload(Line.taxes)
    return session.scalars(sa.select(Order).where(Order.id == number).options(whole)).one_or_none()


def seen(order: Order) -> Doc:
    """The document as the program has it; what is not loaded is loaded."""
    lines = {line.id: line.value for line in order.lines}
    taxes = {tax.id: (line.id, tax.value) for line in order.lines for tax in line.taxes}
    return Doc(order.total, lines, taxes)


def perform(session: Session, what: Action) -> None:
    """Do it to the objects; nothing is flushed."""
    header, target = session.get_one(Order, what.doc), session.get_one(Order, what.to)
    line, other = _found(session, Line, what.line), _found(session, Line, what.other)
    tax, number = _found(session, Tax, what.tax), what.number
    if what.kind is Kind.ADD:
        if number % 2:
            header.lines.append(Line(id=number, value=number))
        else:
            session.add(Line(id=number, value=number, order=header))
        header.total += number
    elif what.kind is Kind.TAX and tax:
        tax.value = number
    elif what.kind is Kind.MOVE_TAX and tax and other:
        assert tax.line is not other  # loads it: SQLAlchemy takes the tax out of what it knows
        tax.line = other
    elif what.kind is Kind.SHIFT and line and other:
        line.value -= number
        other.value += number
    elif what.kind is Kind.NEW_TAX and line:
        line.taxes.append(Tax(id=number, value=number))
    elif what.kind is Kind.VALUE and line:
        header.total += number - line.value
        line.value = number
    elif what.kind is Kind.REMOVE and line:
        header.total -= line.value
        header.lines.remove(line)
    elif what.kind is Kind.MOVE and line:
        header.total -= line.value
        target.total += line.value
        assert line.order is header
        line.order = target
    else:
        raise AssertionError(what)


def _found(session: Session, entity: type[T], ident: int) -> T | None:
    """An object that is persistent, or pending."""
    new = (one for one in session.new if isinstance(one, entity) and one.id == ident)  # type: ignore[attr-defined]
    return next(new, None) or session.get(entity, ident)


# --------------------------------------------------------------------------------------------------
# The objects that a session has in memory, looked at without loading anything.


def disagreements(session: Session, views: Mapping[int, Doc | None]) -> Iterator[str]:
    """Yield the loaded attributes of these documents that are not as they should be."""
    for number, view in views.items():
        assert view is not None
        yield from _of_object(session, Order, number, total=view.total, lines=set(view.lines))
        for line, value in view.lines.items():
            taxes = {tax for tax, (at, _) in view.taxes.items() if at == line}
            yield from _of_object(session, Line, line, value=value, order=number, taxes=taxes)
        for tax, (line, value) in view.taxes.items():
            yield from _of_object(session, Tax, tax, value=value, line=line)


def _of_object(session: Session, entity: Any, ident: int, **expected: object) -> Iterator[str]:
    instance = session.identity_map.get(session.identity_key(entity, ident))
    loaded = {} if instance is None else inspect(instance).dict
    for name, value in expected.items():
        if name in loaded and (found := _plain(loaded[name])) != value:
            yield f"{entity.__name__} {ident}: {name} is {found}, should be {value}"


def _plain(value: Any) -> object:
    if isinstance(value, list):
        return {one.id for one in value}
    return value.id if isinstance(value, (Order, Line)) else value


Unsaved = set[tuple[object, ...]]


def unsaved(session: Session) -> Unsaved:
    """The pending changes: of each object and attribute, what was set, added and removed."""
    found: Unsaved = set()
    for instance in [*session.new, *session.dirty, *session.deleted]:
        whose = _named(instance)
        for attribute in inspect(instance).attrs:
            history, name = attribute.history, attribute.key
            removed = history.deleted if name in ("lines", "taxes") else ()
            found |= {(*whose, name, "added", _of(value)) for value in history.added or ()}
            found |= {(*whose, name, "removed", _of(value)) for value in removed or ()}
    return found


def _of(value: Any) -> str:
    return " ".join(map(str, _named(value)))


def _named(value: Any) -> tuple[str, object]:
    state = inspect(value, raiseerr=False)
    if state is None:
        return type(value).__name__, value
    return type(value).__name__, state.identity[0] if state.identity else value.id
