"""The shapes of entities that are locked, with the header's name in SQL."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Engine, select, update
from sqlalchemy.orm import aliased

from tests.sql.models import (
    Building,
    ColdStore,
    Contract,
    Delivery,
    Fault,
    Invoice,
    Journal,
    Lease,
    Order,
    Project,
    Ticket,
    Voucher,
)
from tests.sql.script import MISSING, Script


class Shape(NamedTuple):
    """:ivar kind: what the polymorphic column says of the only row."""

    entity: Any
    header: str
    key: Any = 1
    kind: str = ""

    @property
    def missing(self) -> Any:
        """A key that no row has."""
        return (MISSING, MISSING) if isinstance(self.key, tuple) else MISSING


_derived = aliased(Order, select(Order).subquery(), name="derived")

CLASSES = {
    "plain": Shape(Order, "shop_order"),
    "composite key": Shape(Voucher, "shop_voucher", (1, 1)),
    "schema and quoted names": Shape(Journal, "Journal of Group"),
    "joined inheritance": Shape(Lease, "shop_contract", kind="lease"),
    "joined inheritance, root": Shape(Contract, "shop_contract", kind="lease"),
    "with_polymorphic": Shape(Project, "shop_project", kind="building"),
    "with_polymorphic, subclass": Shape(Building, "shop_project", kind="building"),
    "single inheritance": Shape(Fault, "shop_ticket", kind="fault"),
    "single inheritance, root": Shape(Ticket, "shop_ticket", kind="fault"),
    "concrete inheritance": Shape(ColdStore, "shop_cold_store"),
    "mapped lazy='joined'": Shape(Invoice, "shop_invoice"),
    "declared document": Shape(Delivery, "shop_delivery"),
}
"""The entities that have a key to ask for."""

ENTITIES = CLASSES | {
    "aliased": Shape(aliased(Order, name="o"), "o"),
    "aliased flat": Shape(
        aliased(Lease, name="rented", flat=True), "rented_shop_contract", kind="lease"
    ),
    "aliased, not flat": Shape(aliased(Lease, name="rented"), "?", kind="lease"),
    "of a subquery": Shape(_derived, "?"),
}
"""The entities that a select can be made of."""

_NO_SCHEMA = {"sqlite": {"schema and quoted names"}}  # the file has no such schema


def exists_on(database: str, shape: str) -> bool:
    return shape not in _NO_SCHEMA.get(database, ())


def put_kinds(database: str, engine: Engine, script: Script) -> None:
    """On the file of SQLite, make the rows those of these shapes."""
    if database == "sqlite":
        with engine.begin() as connection:
            for root, kind in (Contract, "lease"), (Project, "building"), (Ticket, "fault"):
                connection.execute(update(root).values(kind=kind))
        script.sent.clear()
