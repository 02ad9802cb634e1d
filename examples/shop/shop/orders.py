"""The operations on an order.  Each function is one transaction, and may be called again.

All take locks in the order that shop.database declares: order, payment, items, number range.
"""

from collections.abc import Mapping

from sa_doclock import LockingSession, LockOptions
from shop.database import Session
from shop.models import Item, Line, Mail, NumberRange, Order, Payment


class Refused(Exception):
    """The shop refuses the request; the text is for the customer."""


def place(ident: str, basket: Mapping[int, int]) -> int:
    """Store the order and take its items out of the stock; return the total.

    :raises Refused: an item does not exist or is sold out, or a quantity is not positive; nothing is stored.
    """
    with Session.begin() as session:
        order, created = session.get_or_create_entity(Order, ident)
        if created:
            items = session.get_entities(Item, list(basket), LockOptions.ForUpdate)
            if len(items) < len(basket):
                raise Refused("there is no such item")
            for item in items:
                order.lines.append(_take(item, basket[item.id]))
            order.total = sum(line.quantity * line.price for line in order.lines)
        return order.total


def _take(item: Item, quantity: int) -> Line:
    if quantity < 1:
        raise Refused(f"item {item.id}: {quantity} cannot be ordered")
    if item.stock < quantity:
        raise Refused(f"item {item.id}: {item.stock} left")
    item.stock -= quantity
    return Line(item_id=item.id, quantity=quantity, price=item.price)


def pay(ident: str, key: str, year: int) -> int:
    """Mark the order as paid, and write its invoice and a mail; return the invoice's number.

    :param key: the client's key for this payment; a second call with this key returns the same number.
    :raises sqlalchemy.exc.NoResultFound: the order does not exist.
    :raises Refused: the order is paid or cancelled, or the key belongs to another order.
    """
    with Session.begin() as session:
        order = session.get_one_entity(Order, ident, LockOptions.ForUpdate)
        payment, created = session.get_or_create_entity(Payment, key, defaults={"order_id": ident})
        if payment.order_id != ident:
            raise Refused("this key was used for another order")
        if created:
            if order.state != "open":
                raise Refused(f"the order is {order.state}")
            order.state = "paid"
            payment.year, payment.invoice = year, _next_number(session, year)
            session.add(Mail(text=f"{ident}: invoice {year}/{payment.invoice}"))
        assert payment.invoice is not None
        return payment.invoice


def _next_number(session: LockingSession, year: int) -> int:
    numbers, _ = session.get_or_create_entity(NumberRange, year, defaults={"last": 0})
    numbers.last += 1
    return numbers.last


def cancel(ident: str) -> None:
    """Put the items of the order back into the stock; a second call does nothing.

    :raises sqlalchemy.exc.NoResultFound: the order does not exist.
    :raises Refused: the order is paid.
    """
    with Session.begin() as session, session.locked_document(Order, ident) as order:
        if order.state == "paid":
            raise Refused("the order is paid")
        if order.state == "cancelled":
            return
        back = {line.item_id: line.quantity for line in order.lines}
        for item in session.get_entities(Item, list(back), LockOptions.ForUpdate):
            item.stock += back[item.id]
        order.state = "cancelled"


def show(ident: str) -> dict[str, object]:
    """Return the order with its lines, all from the same moment.

    :raises sqlalchemy.exc.NoResultFound: the order does not exist.
    """
    with Session() as session:
        order = session.get_one_document(Order, ident, LockOptions.SnapshotRead)
        lines = [{"item": line.item_id, "quantity": line.quantity} for line in order.lines]
        return {"state": order.state, "total": order.total, "lines": lines}
