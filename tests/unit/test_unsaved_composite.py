"""A part with a foreign key of two columns, of which one is changed while the other is expired."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import LockingSession, LockOptions, UnsavedChanges, document


class Base(DeclarativeBase):
    """The tables of orders of many tenants."""


@document(parts=["items"])
class Order(Base):
    __tablename__ = "uc_order"
    tenant: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    items: Mapped[list[Item]] = relationship()


class Item(Base):
    __tablename__ = "uc_item"
    id: Mapped[int] = mapped_column(primary_key=True)
    tenant: Mapped[int]
    number: Mapped[int]
    __table_args__ = (
        sa.ForeignKeyConstraint(["tenant", "number"], ["uc_order.tenant", "uc_order.number"]),
    )


@pytest.mark.parametrize("number", [1, 2])
def test_both_the_order_that_it_leaves_and_the_one_that_it_comes_to_have_it(
    tmp_path: Path, number: int
) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
    Base.metadata.create_all(engine)
    with LockingSession(engine, autoflush=False) as session:
        with session.unguarded():
            session.add_all([Order(tenant=1, number=1), Order(tenant=1, number=2)])
            session.add(Item(id=1, tenant=1, number=1))
            session.commit()
        item = session.get_one(Item, 1)
        session.commit()
        item.number = 2
        with pytest.raises(UnsavedChanges):
            session.get_document(Order, (1, number), LockOptions.ForUpdate)
