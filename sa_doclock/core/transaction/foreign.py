"""Foreign statements, which SQLAlchemy has not built from constructs: they may end the transaction.

Such are ``text()``, DDL, a procedure, ``exec_driver_sql()``, and the driver's own cursor.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sqlalchemy import CompoundSelect, Delete, Insert, Select, Update
from sqlalchemy.orm import FromStatement

SPACE: Final = r"(?:[\s;]|/\*(?:[^*]|\*(?!/))*\*/|--[^\n]*(?:\n|$))*"
"""A pattern of the text that may surround a statement, as the comment of a listener of the
engine does, such as OpenTelemetry's sqlcommenter."""

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


# All that can commit is not to be counted: a procedure, DDL of MySQL, SET autocommit, and more.
_COMMITS_NOTHING: Final = re.compile(
    rf"{SPACE}(?:SELECT|WITH|VALUES|INSERT|UPDATE|DELETE|MERGE|SAVE|RELEASE|ROLLBACK)",
    re.IGNORECASE,
)
_COMMIT: Final = re.compile(r"\bCOMMIT\b", re.IGNORECASE)


def may_commit(statement: str) -> bool:
    """Return whether a foreign statement may be, or bring with it, a COMMIT."""
    return not _COMMITS_NOTHING.match(statement) or bool(_COMMIT.search(statement))
