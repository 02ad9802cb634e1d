"""The kinds of mapping that a header can have, each with a document to lock and another one."""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa

from tests.support.models import (
    Account,
    Base,
    ColdStore,
    Contract,
    Fault,
    Invoice,
    Lease,
    Order,
    Ticket,
    Voucher,
)


class Kind(NamedTuple):
    """A document with the total 30, and another with the total 5."""

    name: str
    entity: type[Any]
    ident: Any
    other: type[Any]
    other_ident: Any

    def __str__(self) -> str:
        return self.name

    @property
    def table(self) -> sa.Table:
        """The table of the header row."""
        root = Contract if self.entity is Lease else self.entity
        return Base.metadata.tables[root.__tablename__]

    def write_total(self, total: int) -> sa.Update:
        """Make the UPDATE that anyone could send who knows nothing of the ORM."""
        row = self.table.primary_key.columns
        values = self.ident if isinstance(self.ident, tuple) else (self.ident,)
        this = (column == value for column, value in zip(row, values, strict=True))
        return self.table.update().where(*this).values(total=total)


KINDS = (
    Kind("plain", Order, 1, Order, 2),
    Kind("composite", Voucher, (2024, 1), Voucher, (2024, 2)),
    Kind("joined", Lease, 1, Contract, 2),
    Kind("base of joined", Contract, 1, Contract, 2),
    Kind("single-table", Fault, 1, Ticket, 2),
    Kind("concrete", ColdStore, 1, ColdStore, 2),
    Kind("versioned", Account, 1, Account, 2),
    Kind("eager", Invoice, 1, Invoice, 2),
)
