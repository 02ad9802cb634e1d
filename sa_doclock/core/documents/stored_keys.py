"""The keys of headers in their stored form.

Python and the database do not always agree on which keys are equal: ``ABC`` equals ``abc`` in a
collation that ignores case, ``"1"`` equals 1 on MySQL, and a TypeDecorator may return anything.

No listener changes the SELECTs of :func:`ask`.  A program may add criteria to all its SELECTs, as
in SQLAlchemy's recipes for soft deletion; but a row that it hides from itself still has a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Executable,
    Integer,
    Select,
    Uuid,
    and_,
    bindparam,
    false,
    literal_column,
    or_,
    select,
    union_all,
)
from sqlalchemy.orm import Mapper, ORMExecuteState, Session
from sqlalchemy.types import TypeEngine

from ...keys import Identity
from ...sqlalchemy_internals import execute_listeners, listening_last
from .declare import parts_of
from .mapping import mapper_cache

MAX_PARAMETERS = 900  # few enough for every database


def chunks(
    keys: Sequence[Identity], parameters: int = MAX_PARAMETERS
) -> Iterator[Sequence[Identity]]:
    """Yield the keys in chunks, none with more parameters than a statement may have."""
    size = max(1, parameters // len(keys[0])) if keys else 1
    for start in range(0, len(keys), size):
        yield keys[start : start + size]


def key_in(
    columns: Sequence[ColumnElement[Any]],
    keys: Sequence[Sequence[Any]],
    parameter_type: Callable[[TypeEngine[Any]], TypeEngine[Any]] | None = None,
) -> ColumnElement[bool]:
    """Return ``key IN (...)``, even for composite keys, for which SQL Server has no row values.

    :param parameter_type: returns the type by which to send a value, for its column's type.
    """
    types = [column.type for column in columns]
    if parameter_type is not None:
        types = list(map(parameter_type, types))
    if len(columns) == 1:
        values = [key[0] for key in keys]
        if types[0] is columns[0].type:
            return columns[0].in_(values)
        return columns[0].in_(_parameter(values, types[0], expanding=True))
    equal = (
        and_(
            *(
                column == (value if type_ is column.type else _parameter(value, type_))
                for column, value, type_ in zip(columns, key, types, strict=True)
            )
        )
        for key in keys
    )
    return or_(false(), *equal)


def _parameter(value: Any, type_: TypeEngine[Any], *, expanding: bool = False) -> Any:
    # A unique name: SQLAlchemy's cache does not distinguish a type from its variants.
    return bindparam("doclock_key", value, type_=type_, unique=True, expanding=expanding)


_QUESTION: Final = "doclock_question"


def ask(
    session: Session,
    statement: Executable,
    parameters: Any = None,
    *,
    execution_options: Mapping[str, Any] | None = None,
    bind_arguments: dict[str, Any] | None = None,
) -> Sequence[Any]:
    """Return the rows of a SELECT of columns, unaffected by do_orm_execute listeners.

    No flush precedes it.
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


Types = Sequence[TypeEngine[Any]]

_KEYS_OF_A_STATEMENT: Final = 100  # SQLite combines 500 SELECTs at most


@mapper_cache
def compares_in_python(root: Mapper[Any]) -> bool:
    """Return whether two keys of these documents are equal in Python if they are equal in the database.

    Integers and UUIDs are, if the foreign keys have the same type as the key.
    """
    keys = set(root.primary_key)
    if not all(isinstance(column.type, (Integer, Uuid)) for column in root.primary_key):
        return False
    pairs = (pair for part in parts_of(root) for pair in part.relationship.synchronize_pairs)
    return all(_is_same(key.type, other.type) for key, other in pairs if key in keys)


def _is_same(left: TypeEngine[Any], other: TypeEngine[Any]) -> bool:
    if isinstance(left, Uuid) and isinstance(other, Uuid):
        return left.as_uuid == other.as_uuid
    return isinstance(left, Integer) and isinstance(other, Integer)


def select_equal_keys(
    session: Session, root: Mapper[Any], keys: Mapping[Identity, Types | None]
) -> Iterator[tuple[Identity, Identity]]:
    """Yield each of these keys with the primary key of each row that has it.

    :param keys: each with the types of its values; None: those of the primary key.
    """
    asked = list(keys)
    for start in range(0, len(asked), _KEYS_OF_A_STATEMENT):
        some = asked[start : start + _KEYS_OF_A_STATEMENT]
        selects = [_select(root, place, key, keys[key]) for place, key in enumerate(some)]
        statement = selects[0] if len(selects) == 1 else union_all(*selects)
        rows = ask(session, statement, bind_arguments={"mapper": root})
        yield from ((some[place], tuple(stored)) for place, *stored in rows)


def _select(root: Mapper[Any], place: int, key: Identity, types: Types | None) -> Select[Any]:
    columns = root.primary_key
    typed = zip(columns, key, types or [column.type for column in columns], strict=True)
    where = (column == bindparam(None, value, type_=type_) for column, value, type_ in typed)
    return select(literal_column(str(place), Integer()), *columns).where(*where)
