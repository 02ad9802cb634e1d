"""Simulates customers while web servers and workers are killed, then checks the books.

It needs an empty database: SHOP_TEST_URL, or else a temporary SQLite file.
"""

import argparse
import collections
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import scratch
from shop.database import Session
from shop.models import Item, Line, Mail, Order, Payment
from sqlalchemy import func, select

HERE = Path(__file__).parent


class Process:
    """A process of the shop that is restarted after it is killed."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._command = [sys.executable, "-m", "shop", *arguments]
        self._environment = {**os.environ, **environment}
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, cwd=HERE, env=self._environment)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def send(
    client: httpx.Client, ports: list[int], method: str, path: str, **more: object
) -> httpx.Response:
    """Send the request repeatedly until an answer other than 'busy' arrives."""
    while True:
        try:
            answer = client.request(
                method, f"http://127.0.0.1:{random.choice(ports)}{path}", **more
            )
        except httpx.TransportError:
            time.sleep(0.05)
            continue
        if answer.status_code != 503:
            return answer


def shop_until(end: threading.Event, ports: list[int]) -> tuple[list[str], list[int]]:
    """Act as a customer; return the orders confirmed as placed, and the invoice numbers."""
    placed, invoices = [], []
    with httpx.Client(timeout=30) as client:
        while not end.is_set():
            order, key = str(uuid.uuid4()), str(uuid.uuid4())
            basket = {item: random.randint(1, 3) for item in random.sample((1, 2, 3), 2)}
            answer = send(client, ports, "PUT", f"/orders/{order}", json=basket)
            if answer.status_code == 409:
                continue
            answer.raise_for_status()
            placed.append(order)
            if random.random() < 0.3:
                send(client, ports, "DELETE", f"/orders/{order}").raise_for_status()
                continue
            headers = {"Idempotency-Key": key}
            answer = send(client, ports, "POST", f"/orders/{order}/payment", headers=headers)
            invoices.append(answer.raise_for_status().json()["invoice"])
    return placed, invoices


def check(stock: dict[int, int], placed: list[str], invoices: list[int]) -> None:
    """Raise AssertionError if the books are wrong."""
    with Session() as session:
        sold = select(Line.item_id, func.sum(Line.quantity)).join(Order, Order.id == Line.order_id)
        sold = sold.where(Order.state != "cancelled").group_by(Line.item_id)
        taken = {item: int(quantity) for item, quantity in session.execute(sold)}
        for item in session.scalars(select(Item)):
            assert item.stock + taken.get(item.id, 0) == stock[item.id], f"item {item.id}"
        orders = {order.id: order for order in session.scalars(select(Order))}
        assert set(placed) <= set(orders), "an order was answered and is not there"
        for order in orders.values():
            assert order.total == sum(line.quantity * line.price for line in order.lines)
        numbers = sorted(session.scalars(select(Payment.invoice)))
        assert numbers == list(range(1, len(numbers) + 1)), "invoices have a gap"
        assert set(invoices) <= set(numbers), "an invoice was answered and is not there"
        assert len(set(invoices)) == len(invoices), "two customers have one invoice"
        paid = [order.id for order in orders.values() if order.state == "paid"]
        assert sorted(paid) == sorted(session.scalars(select(Payment.order_id)))
        assert session.scalar(select(func.count()).select_from(Mail)) == len(paid)


def wait_for_mails(sent: Path, deaths: int) -> None:
    """Wait until all mails are sent: each at least once, and twice only if a worker died."""
    with Session() as session:
        while session.scalar(select(func.count()).select_from(Mail).where(~Mail.sent)):
            session.rollback()
            time.sleep(0.1)
        known = set(session.scalars(select(Mail.id)))
    count = collections.Counter(int(line.split()[0]) for line in sent.read_text().splitlines())
    assert set(count) == known, "a mail was not sent"
    assert sum(count.values()) <= len(known) + deaths, (
        "a mail was sent twice, and no worker has died"
    )


def run(seconds: float, customers: int, kill_every: float) -> str:
    """Run the shop under load; return a summary."""
    with Session() as session:
        stock = {item.id: item.stock for item in session.scalars(select(Item))}
    sent = Path(tempfile.mkdtemp()) / "sent.txt"
    ports = [free_port(), free_port()]
    web = [Process("web", "--port", str(port)) for port in ports]
    workers = [Process("worker", SHOP_SENT=str(sent)) for _ in range(2)]
    end, deaths = threading.Event(), 0
    try:
        with ThreadPoolExecutor(customers) as threads:
            shopping = [threads.submit(shop_until, end, ports) for _ in range(customers)]
            until = time.monotonic() + seconds
            while time.monotonic() < until and not any(shopper.done() for shopper in shopping):
                time.sleep(kill_every)
                for victim in (random.choice(web), random.choice(workers)):
                    victim.kill()
                    victim.start()
                deaths += 1
            end.set()
            results = [shopper.result() for shopper in shopping]
        wait_for_mails(sent, deaths)
    finally:
        for process in (*web, *workers):
            process.kill()
    placed = [order for orders, _ in results for order in orders]
    invoices = [number for _, numbers in results for number in numbers]
    check(stock, placed, invoices)
    return f"{len(placed)} orders, {len(invoices)} invoices, {2 * deaths} processes killed: all is right"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--customers", type=int, default=6)
    parser.add_argument("--kill-every", type=float, default=5)
    wanted = parser.parse_args()
    with scratch.tables():
        print(run(*vars(wanted).values()))
