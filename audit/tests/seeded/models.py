"""The classes of the seeded programs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, Identity, String, UniqueConstraint
from sqlalchemy.ext.mutable import MutableDict
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship


class Base(DeclarativeBase):
    pass


class Article(Base):
    __tablename__ = "audited_articles"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(50), default="")
    views: Mapped[int] = mapped_column(default=0)
    __mapper_args__ = {"eager_defaults": True}  # noqa: RUF012  # as SQLAlchemy's documentation writes it


class Job(Base):
    __tablename__ = "audited_jobs"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(20), default="new")


class Account(Base):
    __tablename__ = "audited_accounts"
    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(String(50), default="")
    balance: Mapped[int] = mapped_column(default=100)
    settings: Mapped[dict[str, Any]] = mapped_column(MutableDict.as_mutable(JSON), default=dict)
    logins: Mapped[list[Login]] = relationship()

    def withdraw(self, amount: int) -> None:
        if self.balance < amount:
            raise ValueError("not enough")
        self.balance -= amount


class Login(Base):
    __tablename__ = "audited_logins"
    id: Mapped[int] = mapped_column(primary_key=True)
    account_id: Mapped[int] = mapped_column(ForeignKey("audited_accounts.id"))


class Page(Base):
    __tablename__ = "audited_pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(String(200), default="")
    version: Mapped[int] = mapped_column(default=1)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012  # as SQLAlchemy's documentation writes it


class Order(Base):
    __tablename__ = "audited_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int] = mapped_column(default=0)
    lines: Mapped[list[Line]] = relationship(cascade="all, delete-orphan")


class Line(Base):
    __tablename__ = "audited_lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("audited_orders.id"))
    price: Mapped[int] = mapped_column(default=0)


class Stock(Base):
    __tablename__ = "audited_stock"
    id: Mapped[int] = mapped_column(primary_key=True)
    quantity: Mapped[int] = mapped_column(default=10)


class Wallet(Base):
    __tablename__ = "audited_wallets"
    id: Mapped[int] = mapped_column(primary_key=True)
    cents: Mapped[int] = mapped_column("amount", default=100)  # a column of another name
    label: Mapped[str] = mapped_column("name", String(50), default="")


class Person(Base):
    __tablename__ = "audited_people"
    id: Mapped[int] = mapped_column(Identity(start=100), primary_key=True)
    email: Mapped[str] = mapped_column(String(50), default="")
    nick: Mapped[str | None] = mapped_column(String(50), unique=True)
    phone: Mapped[str | None] = mapped_column(String(20))
    password: Mapped[str] = mapped_column(String(50), default="")
    active: Mapped[bool] = mapped_column(default=True)


class Course(Base):
    __tablename__ = "audited_courses"
    id: Mapped[int] = mapped_column(primary_key=True)
    places: Mapped[int] = mapped_column(default=2)
    bookings: Mapped[list[Booking]] = relationship()


class Booking(Base):
    __tablename__ = "audited_bookings"
    id: Mapped[int] = mapped_column(Identity(start=100), primary_key=True)
    course_id: Mapped[int] = mapped_column(ForeignKey("audited_courses.id"))
    person: Mapped[str] = mapped_column(String(50), default="")
    number: Mapped[int] = mapped_column(default=0)


class SchemaVersion(Base):
    __tablename__ = "audited_schema_version"
    id: Mapped[int] = mapped_column(
        primary_key=True, autoincrement=False, default=1
    )  # a singleton row
    number: Mapped[int]


class Invoice(Base):
    __tablename__ = "audited_invoices"
    __table_args__ = (UniqueConstraint("year", "number"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    year: Mapped[int]
    number: Mapped[int]


def fill(session: Session) -> None:
    """Store two rows of each."""
    for ident in (1, 2):
        for entity in (Article, Job, Account, Page, Stock, Wallet, Person, Course):
            session.add(entity(id=ident))
        session.add(Order(id=ident, lines=[Line(price=10)], total=10))
    session.commit()
