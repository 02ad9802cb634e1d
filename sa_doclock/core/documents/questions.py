"""Questions to the database about the document of a row: SELECTs that no listener changes.

A program may add criteria to all that it selects, as by SQLAlchemy's recipes for rows that are
marked as deleted.  A row that it hides from itself has a document all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from sqlalchemy import Select, event
from sqlalchemy.orm import ORMExecuteState, Session

from ..sqlalchemy_internals import allow_listening, execute_listeners

_QUESTION: Final = "doclock_question"


def ask(
    session: Session,
    statement: Any,
    parameters: Any = None,
    *,
    execution_options: Mapping[str, Any] | None = None,
    bind_arguments: dict[str, Any] | None = None,
) -> Sequence[Any]:
    """Return the rows of a SELECT of columns, whatever the do_orm_execute listeners make of it.

    Nothing is flushed before it.
    """
    options = {**(execution_options or {}), _QUESTION: statement}
    unchanged = _unchanged(session, statement) if execute_listeners(session) else nullcontext()
    with session.no_autoflush, unchanged:
        found = session.execute(
            statement, parameters, execution_options=options, bind_arguments=bind_arguments
        )
        return found.all()


@contextmanager
def _unchanged(session: Session, statement: Select[Any]) -> Iterator[None]:
    """Return a block in which this statement is executed as it is."""

    def restore(state: ORMExecuteState) -> None:
        if state.execution_options.get(_QUESTION) is statement:
            state.statement = statement

    allow_listening([session], "do_orm_execute")  # also while a listener executes a statement
    event.listen(session, "do_orm_execute", restore)  # after all others
    try:
        yield
    finally:
        event.remove(session, "do_orm_execute", restore)
