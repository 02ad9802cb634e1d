"""The driver alone: psycopg (which prepares statements by default), PyMySQL, sqlite3."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pymysql
import sqlalchemy as sa

from benchmarks.lab.figures import Absent
from benchmarks.lab.models import numbers
from benchmarks.ways import Way

SHARED = {"postgresql": "FOR SHARE", "mysql": "FOR SHARE", "mariadb": "LOCK IN SHARE MODE"}

HEADER = "SELECT id, total FROM doclock_bench_doc WHERE id = %s "
DETAILS = "SELECT id, doc_id, value FROM doclock_bench_detail WHERE doc_id = %s"
SET_DETAIL = "UPDATE doclock_bench_detail SET value = %s WHERE id = %s"
SET_TOTAL = "UPDATE doclock_bench_doc SET total = %s WHERE id = %s"


class Connections:
    """The simplest pool."""

    def __init__(self, product: str, url: sa.URL, size: int, *, autocommit: bool = False) -> None:
        self._idle: queue.LifoQueue[Any] = queue.LifoQueue()
        for _ in range(size):
            self._idle.put(_connect(product, url, autocommit=autocommit))

    @contextmanager
    def one(self) -> Iterator[Any]:
        connection = self._idle.get()
        try:
            yield connection
        finally:
            self._idle.put(connection)

    def close(self) -> None:
        while not self._idle.empty():
            self._idle.get().close()


def _connect(product: str, url: sa.URL, *, autocommit: bool) -> Any:
    if product == "postgresql":
        conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
        return psycopg.connect(conninfo, autocommit=autocommit)
    if product in ("mysql", "mariadb"):
        connection = pymysql.connect(
            host=url.host or "127.0.0.1",
            port=url.port or 3306,
            user=url.username,
            password=url.password or "",
            database=url.database,
            ssl_disabled=True,
        )
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return connection
    raise Absent(f"there is no lock in a SELECT of {product}")


def raw(product: str, url: sa.URL, size: int = 1) -> Way:
    """Send one statement after another, as a driver is normally used."""
    connections = Connections(product, url, size)
    shared = SHARED[product]

    def update(number: int) -> None:
        with connections.one() as connection, connection.cursor() as cursor:
            cursor.execute(HEADER + "FOR UPDATE", (number,))
            cursor.fetchone()
            cursor.execute(DETAILS, (number,))
            details = cursor.fetchall()
            value = next(numbers)
            total = value + sum(detail[2] for detail in details[1:])
            cursor.execute(SET_DETAIL, (value, details[0][0]))
            cursor.execute(SET_TOTAL, (total, number))
            connection.commit()

    def load(number: int) -> int:
        with connections.one() as connection, connection.cursor() as cursor:
            cursor.execute(HEADER + shared, (number,))
            cursor.fetchone()
            cursor.execute(DETAILS, (number,))
            total: int = sum(detail[2] for detail in cursor.fetchall())
            connection.rollback()
        return total

    return Way("the driver alone", update, load, connections.close)


def pipelined(product: str, url: sa.URL, size: int = 1) -> Way:
    """Use as few round trips as psycopg allows: the lower limit.

    :raises Absent: another driver, without a pipeline.
    """
    if product != "postgresql":
        raise Absent("psycopg alone has a pipeline")
    # In psycopg's own transaction, commit() and the end of the pipeline would be a round trip each.
    connections = Connections(product, url, size, autocommit=True)

    def update(number: int) -> None:
        with connections.one() as connection, connection.pipeline():
            details = _read(connection, number, "FOR UPDATE").fetchall()
            value = next(numbers)
            total = value + sum(detail[2] for detail in details[1:])
            connection.execute(SET_DETAIL, (value, details[0][0]))
            connection.execute(SET_TOTAL, (total, number))
            connection.execute("COMMIT")

    def load(number: int) -> int:
        with connections.one() as connection:
            with connection.pipeline():
                details = _read(connection, number, "FOR SHARE")
                connection.execute("ROLLBACK")
            total: int = sum(detail[2] for detail in details.fetchall())
        return total

    return Way("the driver alone, pipelined", update, load, connections.close)


def _read(connection: Any, number: int, lock: str) -> Any:
    connection.execute("BEGIN")
    connection.execute(HEADER + lock, (number,))
    return connection.execute(DETAILS, (number,))  # a separate statement: a fresh read
