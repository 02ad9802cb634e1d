"""Classes that a test maps for itself alone, some of them wrongly declared."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, ForeignKey, Integer, Table
from sqlalchemy.orm import configure_mappers, registry, relationship

from sa_doclock import document
from sa_doclock.core.documents.declare import parts_of
from sa_doclock.core.documents.mapping import mapper_of, root_of

COMPOSITION = "all, delete-orphan"


class World:
    """A registry of its own; when the test is over, none of its classes is mapped."""

    def __init__(self) -> None:
        self.registry = registry()
        self.made: list[type[Any]] = []  # a declaration is gone with its class

    def map(
        self,
        name: str,
        *columns: Column[Any],
        declare: Callable[[Any], Any] | None = None,
        **properties: Any,
    ) -> Any:
        """Map a class with a key, these columns, and these relationships, imperatively."""
        key = Column("id", Integer, primary_key=True)
        table = Table(name.lower(), self.registry.metadata, key, *columns)
        entity: Any = type(name, (), {})
        if declare is not None:
            entity = declare(entity)
        self.registry.map_imperatively(entity, table, properties=properties)
        self.made.append(entity)
        return entity

    def order(self, *parts: str, **more: Any) -> Any:
        """Map Order, Line and Tax, and declare these parts of an order; without any, bare."""
        declare = document(parts=parts) if parts else document
        order = self.map(
            "Order",
            refers("customer"),
            declare=declare,
            lines=relationship("Line", back_populates="order", cascade=COMPOSITION),
            customer=relationship("Customer"),
            **more,
        )
        self.map(
            "Line",
            refers("order"),
            order=relationship("Order", back_populates="lines"),
            taxes=relationship("Tax", cascade=COMPOSITION),
        )
        self.map("Tax", refers("line"))
        self.map("Customer")
        return order

    def close(self) -> None:
        """Forget everything."""
        self.registry.dispose()
        self.made.clear()
        gc.collect()
        configure_mappers()  # raises what has leaked


def refers(table: str, name: str | None = None, *, key: str = "id") -> Column[Any]:
    """Make the column of a foreign key, ``<table>_id``."""
    return Column(name or f"{table}_id", ForeignKey(f"{table}.{key}"))


def paths(entity: Any) -> list[str]:
    """Return the paths of all parts, as the library has understood the declaration."""
    return [part.path for part in parts_of(root_of(mapper_of(entity)))]
