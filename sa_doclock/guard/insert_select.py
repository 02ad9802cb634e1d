"""INSERT .. FROM SELECT of parts: the owners that its SELECT names, and the rows that it has added.

The SELECT may read other rows, or return other values, when the INSERT runs.  Nobody else adds
rows to a document that is held ForUpdate: so the rows of these owners are counted before and after,
and whatever else was added has come to another document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Insert, func, or_, select

from ..core.documents import ask, has_null
from ..core.statements import chunks, key_in
from ..dialects import schema_translation
from ..keys import Identity
from .dml_internals import select_of_insert, values_of
from .targets import Execution, Link, Row, Target


class InsertedFromSelect:
    """The rows that one such statement adds to one target, which has links to owners."""

    def __init__(self, run: Execution, target: Target) -> None:
        statement: Insert = run.statement
        self._run, self._target, self._table = run, target, statement.table
        self._options = schema_translation(statement.get_execution_options())
        self._conditional = values_of(statement).conditional
        names, rows = select_of_insert(statement)
        selected = dict(zip(map(target.attribute_of, names), rows.subquery().c, strict=True))
        owners = dict.fromkeys(name for link in target.links for name in link.names)
        self._selected = {name: selected[name] for name in owners if name in selected}
        self._owners: dict[Link, dict[Identity, None]] = {link: {} for link in target.links}
        self._without_owner = self._expected = self._before = 0

    def ask(self) -> Iterator[Row]:
        """Yield the values that name owners, each combination once."""
        columns = list(self._selected.values())
        asked = select(*columns, func.count()).group_by(*columns)
        if not columns:
            yield {}
            return
        for parameters in self._run.given:
            for *values, rows in self._execute(asked, parameters, self._run.how):
                row = dict(zip(self._selected, values, strict=True))
                self._note(row, rows)
                yield row
        self._before = self._count()

    def _note(self, row: Row, rows: int) -> None:
        self._expected += rows
        keys = {link: tuple(row.get(name) for name in link.names) for link in self._owners}
        named = {link: key for link, key in keys.items() if not has_null(key)}
        for link, key in named.items():
            self._owners[link][key] = None
        if not named:
            self._without_owner += rows

    def has_added_others(self, written: int | None) -> bool:
        """Return whether rows were added to other documents than those that were asked about."""
        if not self._selected or (written is None and self._conditional):
            return False
        rows = self._expected if written is None else written
        return self._count() - self._before < rows - self._without_owner

    def _count(self) -> int:
        """Return the number of the rows of these owners."""
        return sum(
            self._execute(select(func.count()).select_from(self._table).where(where), {}, {})[0][0]
            for where in self._of_owners()
        )

    def _of_owners(self) -> Iterator[ColumnElement[bool]]:
        """Yield conditions for the rows of these owners; no row fulfils two of them."""
        several = [(link, keys) for link, keys in self._owners.items() if keys]
        if len(several) == 1:
            link, keys = several[0]
            for some in chunks(list(keys)):
                yield key_in(self._columns(link), some)
        elif several:
            yield or_(*(key_in(self._columns(link), list(keys)) for link, keys in several))

    def _columns(self, link: Link) -> list[Column[Any]]:
        return [self._target.column_of(name, self._table) for name in link.names]

    def _execute(self, statement: Any, parameters: Row, how: Mapping[str, Any]) -> Sequence[Any]:
        binds = {"mapper": self._target.root, **how.get("bind_arguments", {})}
        return ask(
            self._run.session,
            statement.execution_options(**self._options),
            parameters,
            **{**how, "bind_arguments": binds},
        )
