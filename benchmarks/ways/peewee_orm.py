"""peewee: ``for_update()``."""

from __future__ import annotations

import warnings
from typing import Any

import sqlalchemy as sa

from benchmarks.lab.figures import Absent
from benchmarks.lab.models import numbers
from benchmarks.ways import Way
from benchmarks.ways.raw import SHARED


def peewee(product: str, url: sa.URL) -> Way:
    """:raises Absent: peewee is not installed."""
    try:
        import peewee as library  # noqa: PLC0415
    except ImportError:
        raise Absent("peewee is not installed (dependency group bench)") from None
    database = _database(library, product, url)
    doc_class, detail_class = _models(library, database)
    shared = SHARED[product]

    def update(number: int) -> None:
        with database.atomic():
            doc = doc_class.select().where(doc_class.id == number).for_update().get()
            details = list(doc.details)
            details[0].value = next(numbers)
            doc.total = sum(detail.value for detail in details)
            details[0].save(only=[detail_class.value])
            doc.save(only=[doc_class.total])

    def load(number: int) -> int:
        with database.manual_commit():  # atomic() would commit after the rollback
            database.begin()
            doc = doc_class.select().where(doc_class.id == number).for_update(shared).get()
            total: int = sum(detail.value for detail in doc.details)
            database.rollback()
        return total

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        database.connect()
    return Way("peewee", update, load, database.close)


def _database(library: Any, product: str, url: sa.URL) -> Any:
    where = {"host": url.host, "port": url.port, "user": url.username, "password": url.password}
    if product == "postgresql":
        return library.PostgresqlDatabase(url.database, prefer_psycopg3=True, **where)
    return library.MySQLDatabase(url.database, ssl_disabled=True, **where)


def _models(library: Any, database: Any) -> tuple[Any, Any]:
    class Doc(library.Model):  # type: ignore[misc]  # peewee builds its models from this
        id = library.IntegerField(primary_key=True)
        total = library.IntegerField()

        class Meta:
            table_name = "doclock_bench_doc"

    class Detail(library.Model):  # type: ignore[misc]
        id = library.IntegerField(primary_key=True)
        doc = library.ForeignKeyField(Doc, backref="details")
        value = library.IntegerField()

        class Meta:
            table_name = "doclock_bench_detail"

    database.bind([Doc, Detail], bind_refs=False, bind_backrefs=False)
    return Doc, Detail
