"""The check of the rows that one statement writes, of one target.

An INSERT .. ON CONFLICT DO UPDATE, or ON DUPLICATE KEY UPDATE, finds a row that has the same values as the new
one in the columns of the conflict.  Where the foreign key to the owner is among them, and the update leaves it
alone, both rows are of the same document.  The same is true of a header where its primary key is among them.

The SELECT of an INSERT .. FROM SELECT may read other rows, or return other values, when the INSERT runs.  Nobody
else adds rows to a document that is held ForUpdate: so the rows of these owners are counted before and after,
and whatever else was added has come to another document.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, product
from typing import Any, Final

from sqlalchemy import (
    ClauseElement,
    Column,
    ColumnElement,
    Insert,
    PrimaryKeyConstraint,
    Select,
    UniqueConstraint,
    func,
    or_,
    select,
)
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.sql.expression import ColumnClause

from ..core.documents import (
    UNKNOWN,
    HeaderResolver,
    ask,
    document_key,
    has_null,
    is_header,
    key_attributes,
    takes,
)
from ..core.statements import add_lock, chunks, key_in
from ..dml_internals import Conflict, conflict_of, select_of_insert, values_of
from ..keys import DocumentKey, Identity
from ..options import LockOptions
from .refusals import Refusal, Refusals
from .targets import (
    Execution,
    Link,
    Row,
    Target,
    Write,
    is_header_target,
    literal,
    table_of,
    writes_by_key,
)
from .touched import TouchedRows, row_count, touched_rows


def stays_in_its_document(statement: Insert, target: Target, given: Collection[str]) -> bool:
    """Return whether a row that is updated is certainly of the document of the new row.

    MySQL, and a conflict without columns, mean any unique key of the table: those that the Table
    declares.

    :param given: the names of the attributes that the new rows have values for.
    """
    conflict = conflict_of(statement)
    deciding = _deciding_attributes(target)
    if conflict is None or not deciding:
        return False
    # excluded.order_id of PostgreSQL and SQLite, inserted.order_id of MySQL, and the old value stay.
    stay = {k for k, v in conflict.sets.items() if isinstance(v, ColumnClause) and v.key == k}
    if not deciding.isdisjoint(map(target.attribute_of, conflict.sets.keys() - stay)):
        return False
    table = table_of(statement)
    generated = getattr(table, "autoincrement_column", None)  # its value is one that no row has yet
    for key in _keys_of(conflict, table):
        columns = {*map(target.attribute_of, key)}
        is_new = generated is not None and target.attribute_of(generated) in columns - {*given}
        if not deciding <= columns and not is_new:
            return False
    return True


def _deciding_attributes(target: Target) -> set[str]:
    """Return the attributes that say which document a row is of; empty if they do not."""
    links = set(chain.from_iterable(link.names for link in target.links))
    if target.unclear:
        return set()
    if is_header_target(target):
        return links | {*key_attributes(target.root)}
    return set() if target.by_identity else links


def _keys_of(conflict: Conflict, table: Any) -> Iterator[Collection[Any]]:
    """Yield the keys of which the new row and the one that is there have one in common."""
    if conflict.columns is not None:
        yield conflict.columns
        return
    for one in (*table.constraints, *table.indexes):
        is_key = isinstance(one, (PrimaryKeyConstraint, UniqueConstraint))
        if is_key or getattr(one, "unique", False):
            yield [*one.columns]


class InsertedFromSelect:
    """The rows that one such statement adds to one target, which has links to owners."""

    def __init__(self, run: Execution, target: Target) -> None:
        statement: Insert = run.statement
        self._run, self._target, self._table = run, target, table_of(statement)
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
            for *values, rows in self._run.ask_of(self._target, asked, parameters):
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
            self._run.ask_of(
                self._target, select(func.count()).select_from(self._table).where(where)
            )[0][0]
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


_UNCLEAR: Final = (
    "a statement that does not tell of what (name one class or table, and the keys of its rows),"
)


ATOMIC: Final = "doclock_atomic"
"""The execution option of a statement that atomic_update() has made."""


def is_atomic(statement: Any) -> bool:
    """Return whether atomic_update() has made the statement."""
    return bool(statement.get_execution_options().get(ATOMIC))


def needs_no_lock(statement: Any, target: Target, parameters: Iterable[Row]) -> bool:
    """Return whether atomic_update() has made the statement, and it changes headers in place."""
    if not is_atomic(statement):
        return False
    changed = {name for row in values_of(statement).rows for name in target.by_attribute(row)}
    given = {name for row in parameters for name in target.by_attribute(row)}
    return is_header_target(target) and _stays_in_place(target, changed, given)


def _stays_in_place(target: Target, changed: set[str], given: set[str]) -> bool:
    """Return whether a change of these attributes is one of the header's own row alone.

    :param given: the names of the parameters, which are no values of attributes.
    """
    root, links = target.root, target.links
    deciding = {*key_attributes(root), *chain.from_iterable(link.names for link in links)}
    attributes = {one.key for one in root.column_attrs}
    stays = changed.isdisjoint(deciding) and given.isdisjoint(attributes)
    return stays and is_header(root, root)


class StatementCheck:
    """The check of the rows of one target that one statement writes.

    A write concerns a document in two ways.  Of ``UPDATE line SET order_id = 2 WHERE id = 7``
    the database knows that line 7 is of order 1, which the line leaves; only the values of the
    statement know that the line comes to order 2.  Both orders must be locked.
    """

    def __init__(self, session: Session, refusals: Refusals, target: Target, write: Write) -> None:
        self._session, self._refusals = session, refusals
        self.target, self._write = target, write
        self._resolver = HeaderResolver(session, target.root, ask=True)
        self._found: list[Refusal] = []
        self._overwritten: Callable[[], object] = int
        self.inserted: InsertedFromSelect | None = None
        self.asked: int | None = None
        """The number of rows that the statement was about to write; None where none were counted."""
        self._free = 0
        self.left = 0
        """The number of rows of no document that another transaction has brought into one meanwhile."""
        self.headers: dict[Identity, None] = {}
        """The documents that were checked, whose version the statement raises."""
        self.new_keys: list[tuple[DocumentKey, Identity]] = []
        """The documents whose primary key the statement sets, each with the new one."""

    def has_written_others(self, asked: int | None, written: int | None, result: Any) -> bool:
        """Return whether the statement has written rows that were not asked about before.

        :param written: the number of rows, where they were counted.
        """
        if self.inserted is not None:
            return self.inserted.has_added_others(row_count(result))
        return asked is not None and written is not None and written > asked

    def refusal_of_others(self) -> Refusal:
        """Return the refusal of such rows; which documents they are of, nobody knows."""
        what = (
            f"{self.target.name} rows were {self._write.value} by a statement, of which some came "
            "to it after the guard had asked for their documents,"
        )
        return Refusal(self.target.root, UNKNOWN, what, what)

    def rows(self, rows: Iterable[Row], *, overwrites: bool = False) -> list[DocumentKey]:
        """Check rows that are given with all that is written; return the new documents.

        :param overwrites: an INSERT may update the row of the same document that is there already.
        """
        named = [self.target.by_attribute(row) for row in rows]
        if self._refusals.active:
            if self._write is Write.UPDATE or self.target.extended:
                self._check_keys(named)
            elif self.target.stored:
                named = [*map(self._completed, named)]
            if overwrites and is_header_target(self.target):
                self._check_overwritten(named)
            for row in named:
                self._check_owners(row)
            self._settle()
        return self._new_documents(named)

    def _new_documents(self, rows: Iterable[Row]) -> list[DocumentKey]:
        target = self.target
        if self._write is not Write.INSERT or target.extended or not is_header_target(target):
            return []
        keys = map(target.identity, rows)
        return [document_key(target.root, key) for key in keys if key is not None]

    def statement(self, run: Execution) -> list[DocumentKey]:
        """Check a statement; return the new documents."""
        if self._write is Write.INSERT:
            return self._check_insert(run)
        if self._refusals.active and not needs_no_lock(run.statement, self.target, run.given):
            self._check_touched(run)
            self._settle()
            if self._free:
                self._lock_free(run)
                self._settle()
        return []

    def _check_insert(self, run: Execution) -> list[DocumentKey]:
        values = values_of(run.statement)
        if values.from_select:
            self._check_from_select(run, overwrites=values.overwrites)
            return []
        rows = [{**row, **more} for row, more in product(values.rows or ({},), run.given)]
        if self._may_leave(run.statement, rows) and self._refusals.active:
            questions = self._rows_overwritten(run.statement, rows)
            if questions is None:
                self._refuse(UNKNOWN, "an INSERT that may overwrite, which does not tell of what,")
                self._settle()
                return []
            self._check_stored(run, questions)
            if not self._found:
                self._overwritten = partial(self._check_stored, run, questions)
            self._settle()
        new = self.rows(rows, overwrites=values.overwrites)
        # ON CONFLICT DO NOTHING may have left the row of another transaction where it was.
        return [] if values.conditional else new

    def _check_from_select(self, run: Execution, *, overwrites: bool) -> None:
        """Check the owners that the SELECT of an INSERT names; the rows are counted after it."""
        if not self._refusals.active:
            return
        if overwrites or self.target.extended or self.target.stored:
            self._refuse(UNKNOWN, "INSERT .. FROM SELECT, which may overwrite others,")
        elif self.target.links:
            self.inserted = InsertedFromSelect(run, self.target)
            for row in self.inserted.ask():
                self._check_owners(row)
        self._settle()

    def _may_leave(self, statement: Insert, rows: Iterable[Row]) -> bool:
        """Return whether an INSERT may update a row of another document than that of the new row."""
        given = set(chain.from_iterable(map(self.target.by_attribute, rows)))
        return values_of(statement).overwrites and not stays_in_its_document(
            statement, self.target, given
        )

    def _rows_overwritten(
        self, statement: Insert, rows: Iterable[Row]
    ) -> Sequence[Select[Any]] | None:
        """Return the SELECTs of the rows that an INSERT may update; None if it does not tell them."""
        target, conflict = self.target, conflict_of(statement)
        if conflict is None or not self._is_one_of(table := table_of(statement)):
            return None
        if not target.deciding.isdisjoint(map(target.attribute_of, conflict.sets)):
            return None
        named, found = [*map(target.by_attribute, rows)], list[Select[Any]]()
        for key in _keys_of(conflict, table):
            names = [*map(target.attribute_of, key)]
            values = {tuple(literal(row.get(name), row) for name in names) for row in named}
            plain = not any(one is None or isinstance(one, ClauseElement) for one in chain(*values))
            if not plain or not target.has({*names}):
                return None
            found += self._rows_of(names, [*values])
        return found

    def _is_one_of(self, table: Any) -> bool:
        """Return whether every row of the table is one of the target, which a SELECT of its class finds."""
        target, mapper = self.target, self.target.mapper
        whole = mapper is None or (mapper.selectable is table and not mapper.single)
        return whole and not (target.unclear or target.extended or target.stored)

    def _rows_of(self, names: Sequence[str], values: Sequence[Identity]) -> Iterator[Select[Any]]:
        """Yield the SELECTs of rows by the values of these attributes: they return these and ``target.read``."""
        source, column_of = self.target.source, self.target.column_of
        columns, read = (
            [column_of(name, source) for name in some] for some in (names, self.target.read)
        )
        for some in chunks(values):
            yield select(*columns, *read).where(key_in(columns, some))

    def _check_stored(self, run: Execution, questions: Iterable[Select[Any]]) -> None:
        self._resolver = HeaderResolver(self._session, self.target.root, ask=True)
        for question in questions:
            for row in run.ask_of(self.target, question):
                self._check_row(tuple(row[-len(self.target.read) :]))

    def has_overwritten_others(self) -> bool:
        """Return whether an INSERT has updated a row that another transaction has added meanwhile."""
        self._overwritten()
        return bool(self._found)

    def _check_touched(self, run: Execution) -> None:
        values: list[Row] = []
        if self._write is Write.UPDATE:
            rows = values_of(run.statement).rows
            values = [self.target.by_attribute(row) for row in rows] or [{}]
        unclear = self.target.unclear
        by_key = writes_by_key(run.statement, run.parameters)
        touched = None if unclear or by_key else touched_rows(run.statement, self.target)
        if by_key and not unclear:
            self.rows({**row, **given} for row, given in product(values, run.parameters))
        elif touched is None:
            self._refuse(UNKNOWN, _UNCLEAR)
        else:
            self._check_where(touched, values, run)

    def _check_where(self, touched: TouchedRows, values: Sequence[Row], run: Execution) -> None:
        self.asked = 0
        for parameters, answer in run.ask(touched.select_counted()):
            new = [{**row, **self.target.by_attribute(parameters)} for row in values]
            for row in new:
                self._check_owners(row, of_row=False)
            for *found, rows in answer:
                self.asked += rows
                self._free += rows if self._is_free(found) else 0
                self._check_row(tuple(found), new)
                self._note_new_keys(tuple(found), values)

    def _is_free(self, row: Sequence[Any]) -> bool:
        """Return whether a row of ``target.read`` refers to no owner."""
        if self.target.by_identity or self.target.mapper is None:
            return False
        return all(
            has_null(tuple(found[name] for name in link.names))
            for link, found in self.target.read_by_link(row)
        )

    def _lock_free(self, run: Execution) -> None:
        """Lock the rows of no document, which anybody may bring into one before they are written."""
        touched = touched_rows(run.statement, self.target, to_lock=True)
        mapper = self.target.mapper
        assert mapper is not None
        if touched is None:
            self._refuse(UNKNOWN, _UNCLEAR)
            return
        no_owner = (
            or_(*(touched.column(name).is_(None) for name in link.names))
            for link in self.target.links
        )
        rows = touched.select(key_attributes(mapper)).where(*no_owner)
        locking = add_lock(rows, touched.entity, LockOptions.ForUpdate)
        # Past the session's own execute(): the lock is none of a document.
        found = [Session.execute(run.session, locking, one, **run.how).all() for one in run.given]
        self.left = self._free - sum(map(len, found))

    def _note_new_keys(self, identity: Identity, values: Iterable[Row]) -> None:
        if not is_header_target(self.target):
            return
        names = key_attributes(self.target.root)
        for row in values:
            key = tuple(
                literal(row.get(name, old), row) for name, old in zip(names, identity, strict=True)
            )
            if key != identity and not any(isinstance(one, ClauseElement) for one in key):
                self.new_keys.append((document_key(self.target.root, identity), key))

    def _check_keys(self, rows: Iterable[Row]) -> None:
        """Check the documents that the rows of these keys belong to now, and those that they come to."""
        target = self.target
        new: defaultdict[Identity, list[Row]] = defaultdict(list)
        for row in rows:
            if (key := self._plain_key(row)) is not None:
                new[key].append(row)
        number = len(target.key)
        for question in self._rows_of(target.key, [*new]):
            for row in ask(self._session, question, bind_arguments=target.bind_arguments):
                key, found = tuple(row[:number]), tuple(row[number:])
                self._check_row(found, new.get(key) or chain.from_iterable(new.values()))

    def _plain_key(self, row: Row) -> Identity | None:
        key = self.target.identity(row)
        if key is None:
            self._refuse(UNKNOWN, "a statement without a plain primary key, which tells of what,")
        return key

    def _completed(self, row: Row) -> Row:
        """Return the values of a row of a table of a subclass, and of the row above that it completes."""
        mapper, names = self.target.mapper, self.target.stored
        assert mapper is not None
        key = self._plain_key(row)
        if key is None:
            return row
        values = dict(zip(key_attributes(mapper), key, strict=True))
        columns: list[Any] = [mapper.column_attrs[name].columns[0] for name in names]
        where = (
            column == values[mapper.get_property_by_column(column).key]
            for column in chain.from_iterable({one.table.primary_key for one in columns})
        )
        for stored in ask(self._session, select(*columns).where(*where)):
            return {**dict(zip(names, stored, strict=True)), **row}
        return row

    def _check_overwritten(self, rows: Iterable[Row]) -> None:
        """Check the headers that are there already, whose keys the rows have."""
        target = self.target
        assert target.mapper is not None
        for identity in map(target.identity, rows):
            if identity is None:
                self._refuse(UNKNOWN, "an INSERT that may overwrite, without its key,")
            else:
                self._check_headers(target.mapper, identity)

    def _check_row(self, row: Identity, new: Iterable[Row] = ()) -> None:
        """Check the documents of a row of ``target.read``, which gets new values."""
        if self.target.by_identity:
            assert self.target.mapper is not None
            self._check_headers(self.target.mapper, row)
            return
        for link, now in self.target.read_by_link(row):
            if self.target.of_any_kind or takes(link.discriminators, now):
                self._check_owner(link, now)
            for values in new if link.discriminators else ():
                known = {name: literal(value, values) for name, value in values.items()}
                if takes(link.discriminators, {**now, **known}):
                    self._check_owner(link, {**now, **known})

    def _check_owner(self, link: Link, row: Row) -> None:
        key = tuple(row.get(name) for name in link.names)
        if not has_null(key) and not any(isinstance(one, ClauseElement) for one in key):
            self._check_link(link, key)

    def _check_owners(self, row: Row, *, of_row: bool = True) -> None:
        """Check the documents that a new row, or new values of a row, come to.

        :param of_row: False: where the values of the row itself tell, it is checked with these.
        """
        known = {name: literal(value, row) for name, value in row.items()}
        for link in self.target.links:
            if takes(link.discriminators, known):
                self._check_new_owner(link, known, of_row=of_row)

    def _check_new_owner(self, link: Link, row: Row, *, of_row: bool) -> None:
        key = tuple(row.get(name) for name in link.names)
        if self._is_unclear(link, row, key):
            names = " and ".join(link.names)
            self._refuse(UNKNOWN, f"a statement whose {names} does not tell of what,")
        elif not has_null(key) and (of_row or not link.discriminators):
            part, resolver = link.part, self._resolver
            for owner in [key] if part is None else resolver.owners_by_reference(part, key):
                self._check_link(link, owner)

    def _is_unclear(self, link: Link, row: Row, key: Identity) -> bool:
        """Return whether the values do not say which owner the row comes to.

        A composite key that an UPDATE sets in part has its other part in the row, and the table
        may set a name that the statement leaves out.
        """
        left_out = {name for name in link.names if name not in row}
        in_part = self._write is Write.UPDATE and 0 < len(left_out) < len(link.names)
        if in_part or not left_out.isdisjoint(link.generated.by(self._write)):
            return True
        return any(isinstance(value, ClauseElement) for value in key)

    def _check_link(self, link: Link, owner: Identity) -> None:
        if link.types:
            self._resolver.note_types(owner, link.types)
        self._check_headers(link.owner, owner)

    def _check_headers(self, mapper: Mapper[Any], identity: Identity) -> None:
        """Check the documents of the row of this class that has this primary key."""
        for header in self._resolver.headers_of_row(mapper, identity):
            self.headers[header] = None
            if not self._refusals.permits(self.target.root, header):
                self._refuse(header)

    def _refuse(self, identity: Identity, by: str = "a statement") -> None:
        what = f"{self.target.name} rows would be {self._write.value} by {by}"
        self._found.append(Refusal(self.target.root, identity, what, what))

    def _settle(self) -> None:
        """Refuse the documents that are not held, by the keys that the database has for them."""
        if self._found:
            refusals = dict.fromkeys(self._found)
            self._found = []
            self._refusals.refuse_all(refusals, {self.target.root: self._resolver})
