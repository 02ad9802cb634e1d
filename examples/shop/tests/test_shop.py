"""Two customers at once."""

import pytest
from fastapi.testclient import TestClient
from shop import orders, worker
from shop.app import app
from shop.database import Session
from shop.models import Item, Order

from sa_doclock import LockOptions
from sa_doclock.testing import assert_locked, two_at_once

client = TestClient(app)


def stock(ident: int) -> int:
    with Session() as session:
        return session.get_one(Item, ident).stock


def pay(order: str, key: str) -> int:
    answer = client.post(f"/orders/{order}/payment", headers={"Idempotency-Key": key})
    return answer.json()["invoice"]


def test_the_last_piece_is_sold_once() -> None:
    with assert_locked(Item, 2):
        answers = two_at_once(
            lambda: client.put("/orders/a", json={1: 1, 2: 1}),
            lambda: client.put("/orders/b", json={2: 1, 1: 1}),
        )
    assert sorted(answer.result().status_code for answer in answers) == [200, 409]
    assert (stock(1), stock(2)) == (4, 0)


def test_an_order_that_is_sent_twice_is_one_order() -> None:
    answers = two_at_once(*[lambda: client.put("/orders/a", json={1: 2})] * 2)
    assert [answer.result().json() for answer in answers] == [{"total": 20}] * 2
    assert stock(1) == 3


def test_a_payment_that_is_sent_twice_is_one_payment() -> None:
    orders.place("a", {1: 1})
    answers = two_at_once(lambda: pay("a", "key"), lambda: pay("a", "key"))
    assert [answer.result() for answer in answers] == [1, 1]


def test_invoices_have_no_gap() -> None:
    for order in "abc":
        orders.place(order, {1: 1})
    first, second = two_at_once(lambda: pay("a", "1"), lambda: pay("b", "2"))
    assert {first.result(), second.result()} == {1, 2}
    assert client.post("/orders/a/payment", headers={"Idempotency-Key": "3"}).status_code == 409
    assert pay("c", "4") == 3


def test_pay_or_cancel() -> None:
    orders.place("a", {1: 1})
    paid, cancelled = two_at_once(lambda: pay("a", "key"), lambda: client.delete("/orders/a"))
    state = client.get("/orders/a").json()["state"]
    assert (state, stock(1)) in (("paid", 4), ("cancelled", 5))
    assert (state == "paid") == (cancelled.result().status_code == 409) == (paid.error is None)


def test_a_busy_order_is_503(monkeypatch) -> None:
    monkeypatch.setitem(Session.kw, "lock_timeout", 0)
    orders.place("a", {1: 1})
    with Session() as holder:
        holder.get_one_entity(Order, "a", LockOptions.ForUpdate)
        assert client.delete("/orders/a").status_code == 503


def test_a_mail_is_sent_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(worker, "SENT", tmp_path / "sent.txt")
    orders.place("a", {1: 1})
    pay("a", "key")
    first, second = two_at_once(worker.send_all, worker.send_all)
    assert first.result() + second.result() == 1
    assert len(worker.SENT.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    "basket",
    [{}, {1: 0}, {1: -5}, {1: 1.5}, {1: "2"}, {1: "12,50"}, {1: True}, {1: None}, {1: 10**30},
     {"one": 1}, {-1: 1}, {10**30: 1}, [1], "1"],
    ids=str,
)  # fmt: skip
def test_a_basket_that_makes_no_sense_is_422(basket) -> None:
    assert client.put("/orders/a", json=basket).status_code == 422
    assert client.get("/orders/a").status_code == 404
    assert stock(1) == 5


def test_a_name_that_does_not_fit_is_422() -> None:
    for ident in ("x" * 37, "%00", "a b", "a%0A"):
        assert client.put(f"/orders/{ident}", json={1: 1}).status_code == 422, ident
    orders.place("a", {1: 1})
    for key in ("", "k" * 101):
        answer = client.post("/orders/a/payment", headers={"Idempotency-Key": key})
        assert answer.status_code == 422, key


@pytest.mark.parametrize("quantity", [0, -5])
def test_no_program_orders_less_than_one(quantity) -> None:
    with pytest.raises(orders.Refused, match="cannot be ordered"):
        orders.place("a", {1: quantity})
    assert stock(1) == 5
