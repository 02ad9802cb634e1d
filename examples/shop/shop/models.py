"""The tables.  A LockingSession refuses to change an order, an item or a number range without its lock."""

from sqlalchemy import CheckConstraint, ForeignKey, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import document


class Base(DeclarativeBase):
    pass


@document
class Item(Base):
    __tablename__ = "items"
    __table_args__ = (CheckConstraint("stock >= 0"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    price: Mapped[int]
    stock: Mapped[int]


@document(parts=("lines",))
class Order(Base):
    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)  # a UUID from the client
    state: Mapped[str] = mapped_column(String(10), default="open")  # then paid or cancelled
    total: Mapped[int] = mapped_column(default=0)
    lines: Mapped[list["Line"]] = relationship(cascade="all, delete-orphan")


class Line(Base):
    __tablename__ = "order_lines"
    __table_args__ = (CheckConstraint("quantity > 0"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(ForeignKey("orders.id"), index=True)
    item_id: Mapped[int] = mapped_column(ForeignKey("items.id"))
    quantity: Mapped[int]
    price: Mapped[int]


@document
class NumberRange(Base):
    __tablename__ = "number_ranges"
    year: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    last: Mapped[int]


class Payment(Base):
    """The answer to a payment request, stored under the client's key."""

    __tablename__ = "payments"
    key: Mapped[str] = mapped_column(String(100), primary_key=True)
    order_id: Mapped[str] = mapped_column(ForeignKey("orders.id"), index=True)
    year: Mapped[int | None]
    invoice: Mapped[int | None]


class Mail(Base):
    """A mail to send; the table is the outbox."""

    __tablename__ = "mails"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(String(200))
    sent: Mapped[bool] = mapped_column(default=False, index=True)
