"""Questions to the database about the document of a row: SELECTs that no listener changes.

A program may add criteria to all that it selects, as by SQLAlchemy's recipes for rows that are
marked as deleted.  A row that it hides from itself has a document all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final

from sqlalchemy import Executable
from sqlalchemy.orm import ORMExecuteState, Session

from ...sqlalchemy_internals import execute_listeners, listening_last

_QUESTION: Final = "doclock_question"


def ask(
    session: Session,
    statement: Executable,
    parameters: Any = None,
    *,
    execution_options: Mapping[str, Any] | None = None,
    bind_arguments: dict[str, Any] | None = None,
) -> Sequence[Any]:
    """Return the rows of a SELECT of columns, whatever the do_orm_execute listeners make of it.

    Nothing is flushed before it.
    """
    options = {**(execution_options or {}), _QUESTION: statement}

    def restore(state: ORMExecuteState) -> None:
        if state.execution_options.get(_QUESTION) is statement:
            state.statement = statement

    unchanged = listening_last(session, restore) if execute_listeners(session) else nullcontext()
    with session.no_autoflush, unchanged:
        found = session.execute(
            statement, parameters, execution_options=options, bind_arguments=bind_arguments
        )
        return found.all()
