"""op.create_checkout_table() and its opposite; autogenerate writes them, and leaves the table alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from alembic.autogenerate import comparators, renderers
from alembic.autogenerate.api import AutogenContext
from alembic.operations import MigrateOperation, Operations
from alembic.operations.ops import CreateTableOp, DropTableOp, ModifyTableOps, UpgradeOps
from sqlalchemy import Column, MetaData

from ..features.checkouts import COLUMNS, NAME, checkout_table

TableName = tuple[str | None, str]
"""The schema and the name of a table."""


class _CheckoutTableOp(MigrateOperation):
    operation: str

    def __init__(self, name: str = NAME, schema: str | None = None) -> None:
        self.name, self.schema = name, schema

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return self.operation, self.schema, self.name


@Operations.register_operation("create_checkout_table")
class CreateCheckoutTableOp(_CheckoutTableOp):
    """The creation of the table of check-outs, and of its indexes."""

    operation = "create_checkout_table"

    @classmethod
    def create_checkout_table(
        cls, operations: Operations, name: str = NAME, schema: str | None = None
    ) -> None:
        """Create the table that :func:`sa_doclock.checkout_table` describes, with its indexes.

        :param name: the name of the table.
        :param schema: the schema of the table; None: the default schema of the connection.
        """
        operations.invoke(cls(name, schema))

    def reverse(self) -> DropCheckoutTableOp:
        """Drop the same table."""
        return DropCheckoutTableOp(self.name, self.schema)


@Operations.register_operation("drop_checkout_table")
class DropCheckoutTableOp(_CheckoutTableOp):
    """The removal of the table of check-outs."""

    operation = "drop_checkout_table"

    @classmethod
    def drop_checkout_table(
        cls, operations: Operations, name: str = NAME, schema: str | None = None
    ) -> None:
        """Drop the table, and with it all check-outs and epochs.

        If the table is created again, epochs restart, and an old epoch may become valid again: no
        page or program may keep one.
        """
        operations.invoke(cls(name, schema))

    def reverse(self) -> CreateCheckoutTableOp:
        """Create the same table."""
        return CreateCheckoutTableOp(self.name, self.schema)


@Operations.implementation_for(CreateCheckoutTableOp)
def _create(operations: Operations, op: CreateCheckoutTableOp) -> None:
    operations.impl.create_table(checkout_table(MetaData(), op.name, op.schema))


@Operations.implementation_for(DropCheckoutTableOp)
def _drop(operations: Operations, op: DropCheckoutTableOp) -> None:
    operations.drop_table(op.name, schema=op.schema)


@renderers.dispatch_for(_CheckoutTableOp)
def _render(autogen_context: AutogenContext, op: _CheckoutTableOp) -> str:
    autogen_context.imports.add("import sa_doclock.alembic")
    prefix = (autogen_context.opts or {}).get("alembic_module_prefix", "op.") or ""
    given = {"name": op.name, "schema": op.schema}
    others = {"name": NAME, "schema": None}
    arguments = (f"{name}={value!r}" for name, value in given.items() if value != others[name])
    return f"{prefix}{op.operation}({', '.join(arguments)})"


try:
    from alembic.util import DispatchPriority
except ImportError:  # before Alembic 1.18, the order of imports decides
    _LAST: dict[str, Any] = {}
else:
    _LAST = {"priority": DispatchPriority.LAST}


@comparators.dispatch_for("schema", **_LAST)
def replace_checkout_tables(
    autogen_context: AutogenContext, upgrade_ops: UpgradeOps, _schemas: Collection[str | None]
) -> None:
    """Replace Alembic's operations on tables of check-outs.

    Our operation creates a new table.  A table that no metadata contains was created by our
    operation in an earlier revision, and stays.
    """
    known = {*_known(autogen_context), *(_named(op) for op in upgrade_ops.ops if _is_ours(op))}
    upgrade_ops.ops[:] = [
        CreateCheckoutTableOp(op.table_name, op.schema)
        if isinstance(op, CreateTableOp) and _is_ours(op)
        else op
        for op in upgrade_ops.ops
        if not isinstance(op, (DropTableOp, ModifyTableOps)) or _named(op) not in known
    ]


def _known(autogen_context: AutogenContext) -> Iterator[TableName]:
    """Yield the check-out tables in the program's metadata."""
    found = autogen_context.metadata
    for metadata in [found] if isinstance(found, MetaData) else found or ():
        for table in metadata.tables.values():
            if set(table.columns.keys()) == set(COLUMNS):
                yield table.schema, table.name


def _named(op: Any) -> TableName:
    return op.schema, op.table_name


def _is_ours(op: MigrateOperation) -> bool:
    if not isinstance(op, (CreateTableOp, DropTableOp)):
        return False
    columns = op.to_table().columns if isinstance(op, DropTableOp) else op.columns
    return {column.name for column in columns if isinstance(column, Column)} == set(COLUMNS)
