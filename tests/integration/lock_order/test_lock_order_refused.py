"""A lock_order that means nothing is refused when the session is made."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import aliased, sessionmaker

from sa_doclock import LockingSession
from tests.support.models import ColdStore, Contract, Depot, Fault, Lease, Order, Ticket

REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "not mapped": ([Order, int], TypeError, "mapped class.*int"),
    "a string": ("Order", TypeError, "mapped class"),
    "names": (["Order"], TypeError, "mapped class.*'Order'"),
    "None": (None, TypeError, "not iterable"),
    "one class": (Order, TypeError, "not iterable"),
    "None in it": ([None], TypeError, "mapped class"),
    "an object": ([Order(id=1)], TypeError, "mapped class"),
    "a table": ([Order.__table__], TypeError, "mapped class"),
    "an alias": ([aliased(Order)], TypeError, "mapped class"),
    "a list in it": ([[Order]], TypeError, "unhashable"),
    "twice": ([Order, Ticket, Order], ValueError, "Order twice"),
    "a subclass beside its root": ([Contract, Lease], ValueError, "Contract twice"),
    "a root beside its subclass": ([Fault, Order, Ticket], ValueError, "Ticket twice"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_it_is_refused(case: tuple[Any, type[Exception], str]) -> None:
    order, error, text = case
    with pytest.raises(error, match=text):
        LockingSession(lock_order=order)
    with pytest.raises(error, match=text):
        sessionmaker(sa.create_engine("sqlite://"), class_=LockingSession, lock_order=order)()


@pytest.mark.parametrize(
    "order", [[], (), [Order], (Order, Lease), iter([Order, Ticket]), [Depot, ColdStore]]
)
def test_it_is_taken(order: Any) -> None:
    LockingSession(lock_order=order).close()
