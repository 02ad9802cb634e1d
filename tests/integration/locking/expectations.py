"""The kinds of mapping that a header can have, and expected differences between databases."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import pytest
import sqlalchemy as sa

from tests.support.databases import product
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

# --------------------------------------------------------------------------------------------------
# The kinds of header mapping, each with a document to lock and another one.


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
        root = Contract if self.entity is Lease else self.entity
        return Base.metadata.tables[root.__tablename__]

    def write_total(self, total: int) -> sa.Update:
        """Return an UPDATE as a client without the ORM would send it."""
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


# --------------------------------------------------------------------------------------------------
# Legitimate differences between databases: the expected behavior of each, as data.
#
# ``@on(TABLE, answer)`` limits a test to the columns of the matrix that give this answer.

F = TypeVar("F", bound=Callable[..., Any])


class Meeting(enum.Enum):
    """The behaviour of the second of two transactions that use a document."""

    GOES_ON = enum.auto()
    WAITS = enum.auto()
    WAITS_AT_COMMIT = enum.auto()


GOES_ON, WAITS, WAITS_AT_COMMIT = Meeting

#: A SharedRead of a document that another transaction is changing.  Row versions show the old
#: state.
READER_AFTER_WRITER: Mapping[str, Meeting] = {
    "postgresql": WAITS,
    "mysql": WAITS,
    "mariadb": WAITS,
    "mssql": GOES_ON,  # SNAPSHOT
    "sqlite": GOES_ON,  # write-ahead log
    "sqlite-journal": GOES_ON,  # a RESERVED lock admits readers until the commit
}

#: A ForUpdate of a document that another transaction holds by SharedRead.
WRITER_AFTER_READER: Mapping[str, Meeting] = {
    "postgresql": WAITS,
    "mysql": WAITS,
    "mariadb": WAITS,
    "mssql": GOES_ON,
    "sqlite": GOES_ON,
    "sqlite-journal": WAITS_AT_COMMIT,  # for the EXCLUSIVE lock
}

#: A ForUpdate of a document that another transaction reads by SnapshotRead.
WRITER_AFTER_SNAPSHOT: Mapping[str, Meeting] = {
    **dict.fromkeys(("postgresql", "mysql", "mariadb", "mssql", "sqlite"), GOES_ON),
    "sqlite-journal": WAITS_AT_COMMIT,  # the file has only one version
}

#: A plain SELECT of any table before the lock, in a transaction at the server's default level.
FINE, REFUSED = "fine", "refused"
LOCK_AFTER_SELECT: Mapping[str, str] = {
    "postgresql": FINE,  # READ COMMITTED
    "mysql": REFUSED,  # REPEATABLE READ: the SELECT has fixed the snapshot of the details
    "mariadb": REFUSED,
    "mssql": FINE,
    "sqlite": FINE,  # sqlite3 ran the SELECT outside any transaction
    "sqlite-journal": FINE,
}


def on(table: Mapping[str, object], answer: object) -> Callable[[F], F]:
    """Run the test on the matrix columns with this outcome in the table."""
    agreeing = [column for column, said in table.items() if said is answer]
    # The name of a database covers all its columns.
    excepted = [column for column in table if column not in agreeing and product(column) != column]

    def mark(test: F) -> F:
        marked: F = pytest.mark.databases(*agreeing)(pytest.mark.not_databases(*excepted)(test))
        return marked

    return mark
