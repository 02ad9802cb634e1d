"""Foreign statements, which SQLAlchemy has not built from constructs: they may end the transaction.

Such are ``text()``, DDL, a procedure, ``exec_driver_sql()``, and the driver's own cursor.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import CompoundSelect, Delete, Insert, Select, Update
from sqlalchemy.orm import FromStatement

_BUILT: Final = (Select, CompoundSelect, Insert, Update, Delete)


def is_built(statement: object) -> bool:
    """Return whether this is a construct that can end no transaction."""
    if isinstance(statement, FromStatement):
        statement = statement.element
    return isinstance(statement, _BUILT)


def runs_built(context: Any) -> bool:
    """Return whether this execution is one of such a construct.

    :param context: the ExecutionContext; None where there is none.
    """
    compiled = getattr(context, "compiled", None)
    return compiled is not None and is_built(compiled.statement)
