"""Django's ORM: ``select_for_update()``.  It has no shared lock, so a load takes the exclusive lock."""

from __future__ import annotations

from functools import cache
from typing import Any

import sqlalchemy as sa

from benchmarks.lab.figures import Absent
from benchmarks.lab.models import numbers
from benchmarks.ways import Way

_ENGINES = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}


def django(product: str, url: sa.URL) -> Way:
    """:raises Absent: Django is not installed, or refuses this server."""
    try:
        from django.core.exceptions import ImproperlyConfigured  # noqa: PLC0415
        from django.db import NotSupportedError, transaction  # noqa: PLC0415
    except ImportError:
        raise Absent("Django is not installed (dependency group bench)") from None
    doc_class = _models()
    alias = f"{product}_{url.port}"
    try:
        connection = _connection(product, url, alias)
        connection.ensure_connection()
    except (ImproperlyConfigured, NotSupportedError) as error:
        raise Absent(f"Django: {error}") from error

    def update(number: int) -> None:
        with transaction.atomic(using=alias):
            doc = doc_class.objects.using(alias).select_for_update().get(pk=number)
            details = list(doc.details.all())
            details[0].value = next(numbers)
            doc.total = sum(detail.value for detail in details)
            details[0].save(update_fields=["value"])
            doc.save(update_fields=["total"])

    def load(number: int) -> int:
        with transaction.atomic(using=alias):
            doc = doc_class.objects.using(alias).select_for_update().get(pk=number)
            total: int = sum(detail.value for detail in doc.details.all())
            transaction.set_rollback(True, using=alias)
        return total

    return Way("Django", update, load, connection.close)


def _connection(product: str, url: sa.URL, alias: str) -> Any:
    from django.db import connections  # noqa: PLC0415
    from django.db.utils import load_backend  # noqa: PLC0415

    if _ENGINES[product] == "mysql":
        import pymysql  # noqa: PLC0415

        pymysql.install_as_MySQLdb()
    settings = {
        "ENGINE": f"django.db.backends.{_ENGINES[product]}",
        "NAME": url.database,
        "USER": url.username,
        "PASSWORD": url.password,
        "HOST": url.host,
        "PORT": url.port,
        "CONN_MAX_AGE": None,
        "OPTIONS": {"ssl_disabled": True} if _ENGINES[product] == "mysql" else {},
    }
    whole = connections.configure_settings({"default": {}, alias: settings})[alias]
    connections[alias] = load_backend(whole["ENGINE"]).DatabaseWrapper(whole, alias)
    return connections[alias]


@cache
def _models() -> Any:
    import django as django_itself  # noqa: PLC0415
    from django.conf import settings  # noqa: PLC0415

    if not settings.configured:
        settings.configure(
            DATABASES={}, USE_TZ=True, DEFAULT_AUTO_FIELD="django.db.models.AutoField"
        )
        django_itself.setup()
    from django.db import models  # noqa: PLC0415

    class Doc(models.Model):  # type: ignore[misc]  # noqa: DJ008  # never shown
        id = models.IntegerField(primary_key=True)
        total = models.IntegerField()

        class Meta:
            app_label = "benchmarks"
            db_table = "doclock_bench_doc"

    class Detail(models.Model):  # type: ignore[misc]  # noqa: DJ008
        id = models.IntegerField(primary_key=True)
        doc = models.ForeignKey(Doc, models.CASCADE, related_name="details")
        value = models.IntegerField()

        class Meta:
            app_label = "benchmarks"
            db_table = "doclock_bench_detail"

    return Doc
