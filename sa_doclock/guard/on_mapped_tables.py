"""A statement that names another object for the table of a document, as one of the mapped Table.

The guard checks that in place of the program's own, which is executed as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import Alias, TableClause, Update, column
from sqlalchemy.orm import Mapper
from sqlalchemy.sql.expression import ColumnClause
from sqlalchemy.sql.visitors import replacement_traverse

from ..core.same_tables import column_named, is_other_object, mapped_table
from .dml_internals import conflict_of, set_names, values_of


class CannotTranslate(Exception):
    """The mapped Table cannot stand for the table that a statement names."""


class Translated(NamedTuple):
    """A statement that names the mapped Table, and the parameters by the columns of that.

    :ivar same_key: both tables have the same primary key.
    """

    statement: Any
    parameters: Any
    same_key: bool = True


def translate(
    statement: Any, parameters: Any, others: Collection[Any], named: Mapper[Any] | None
) -> Translated:
    """Return the statement of the mapped Tables in place of these tables: for the check, never executed.

    :param named: of the class that the statement names.
    :raises CannotTranslate: a name of its may be that of another column there.
    """
    columns = _Columns(others)
    first = statement.table.element if isinstance(statement.table, Alias) else statement.table
    on_mapped = replacement_traverse(statement, {}, columns.replaced)
    if not hasattr(statement, "values"):  # a DELETE
        return Translated(on_mapped, parameters, same_key=False)
    if columns.has_other_keys(first) and conflict_of(statement) is not None:
        raise CannotTranslate
    column_of = partial(_column_of, columns, statement.table, first, named)
    rows = [
        {column_of(name): columns.in_value(value) for name, value in row.items()}
        for row in values_of(statement).rows
    ]
    set_names(on_mapped, rows, lambda name: column_of(name).key)
    return Translated(
        on_mapped,
        _renamed_parameters(parameters, first, named, columns),
        [one.name for one in getattr(first, "primary_key", ())]
        == [one.name for one in columns.mapped(first).primary_key],
    )


def _renamed_parameters(
    parameters: Any, first: Any, named: Mapper[Any] | None, columns: _Columns
) -> Any:
    if isinstance(parameters, (list, tuple)):
        return [_renamed_parameters(one, first, named, columns) for one in parameters]
    if not isinstance(parameters, Mapping):
        return parameters
    names = {name: _name_of(first, named, name) for name in parameters}
    own = columns.mapped(first)
    found = {name: column_named(own, other) for name, other in names.items() if other is not None}
    by_key = {one.key: parameters[name] for name, one in found.items() if one is not None}
    return {**parameters, **by_key}


def _name_of(table: Any, named: Mapper[Any] | None, name: str) -> str | None:
    """Return the name in the database of what a statement calls so; None if the table does not have it."""
    if named is not None and name in named.column_attrs:
        return next(
            (one.name for one in named.column_attrs[name].columns if one.table == table), None
        )
    return table.columns[name].name if name in table.columns else None


def _column_of(
    columns: _Columns, written: Any, table: Any, named: Mapper[Any] | None, key: Any
) -> Any:
    """Return the mapped column for the name of a value: a string, a column, or an attribute of a class."""
    if isinstance(key, str):
        name = _name_of(table, named, key)
        if name is None:
            raise CannotTranslate
        return columns.column(written, name)
    plain = key.__clause_element__() if hasattr(key, "__clause_element__") else key
    return columns.replaced(plain) if columns.replaced(plain) is not None else plain


class _Columns:
    """The mapped Tables, aliases and columns that stand for those of some tables."""

    def __init__(self, others: Iterable[Any]) -> None:
        self._tables: dict[Any, Any] = {one: mapped_table(one) for one in others}
        self._aliases: dict[Any, Any] = {}
        self._unmapped: dict[tuple[Any, str], Any] = {}

    def mapped(self, table: Any) -> Any:
        """Return the Table, or the alias of it, that stands for a table or an alias."""
        if table in self._tables:
            return self._tables[table]
        if not (isinstance(table, Alias) and table.element in self._tables):
            return table
        if table not in self._aliases:
            self._aliases[table] = self._tables[table.element].alias(table.name)
        return self._aliases[table]

    def has_other_keys(self, table: Any) -> bool:
        """Return whether a column has another key than in the mapped Table."""
        own = self.mapped(table)
        pairs = ((one, column_named(own, one.name)) for one in table.columns)
        return any(mapped is not None and mapped.key != one.key for one, mapped in pairs)

    def column(self, table: Any, name: str) -> Any:
        """Return the mapped column of this name; one of the same Table if that does not map it."""
        own = self.mapped(table)
        found = column_named(own, name)
        if found is None:
            if name in own.columns:
                raise CannotTranslate
            found = self._unmapped.setdefault((own, name), column(name))
            found.table = own
        return found

    def replaced(self, element: Any, **_: Any) -> Any:
        """Return what stands for a table, an alias or a column of these; None: the element itself."""
        if isinstance(element, ColumnClause):
            table = element.table
            is_other = table is not None and self.mapped(table) is not table
            return self.column(table, element.name) if is_other else None
        is_table = isinstance(element, (TableClause, Alias))
        own = self.mapped(element) if is_table else element
        return None if own is element else own

    def in_value(self, value: Any) -> Any:
        """Return a value of the statement with the mapped columns in it."""
        value = value.__clause_element__() if hasattr(value, "__clause_element__") else value
        is_expression = hasattr(value, "_traverse_internals")
        return replacement_traverse(value, {}, self.replaced) if is_expression else value


def tables_named(statement: Any) -> Sequence[Any]:
    """Return the tables that a statement writes, which may be tables of documents under another object."""
    written = [statement.table]
    if isinstance(statement, Update):  # MySQL: UPDATE a, b SET a.x = 1, b.y = 2
        names = chain.from_iterable(values_of(statement).rows)
        written += (name.table for name in names if hasattr(name, "table"))
    bases = (one.element if isinstance(one, Alias) else one for one in written)
    return [one for one in dict.fromkeys(bases) if is_other_object(one)]
