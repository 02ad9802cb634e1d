"""The check of the rows that one statement writes, of one target.

``_headers...()`` find whose rows they are: each yields headers; UNKNOWN stands for a row that does
not show its header.  ``_allow()`` refuses those that are not locked.

An INSERT .. ON CONFLICT DO UPDATE, or ON DUPLICATE KEY UPDATE, finds a row that equals the new one
in the columns of the conflict.  If these include the foreign key to the owner, and the update
leaves it alone, both rows belong to the same document.  The same is true of a header if they
include its primary key.

The SELECT of an INSERT .. FROM SELECT may read other rows, or return other values, when the INSERT
runs.  No other transaction adds rows to a document that is locked ForUpdate: so the rows of these owners are
counted before and after, and any other added row belongs to another document.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from sqlalchemy import (
    ClauseElement,
    ColumnElement,
    PrimaryKeyConstraint,
    Select,
    UniqueConstraint,
    func,
    or_,
    select,
)
from sqlalchemy.orm import Session
from sqlalchemy.sql.expression import ColumnClause
from sqlalchemy.util import immutabledict

from ..core.documents import (
    UNKNOWN,
    HeaderResolver,
    ask,
    declares,
    document_key,
    has_null,
    is_header,
    key_attributes,
    takes,
)
from ..core.statements import add_lock, chunks, key_in
from ..dml_internals import Conflict, conflict_of, select_of_insert
from ..keys import DocumentKey, Identity
from ..options import LockOptions
from .refusals import Refusal, Refusals
from .rules import is_told
from .targets import Link, Row, Target, Way, Write, is_header_target, is_plain, literal
from .touched import RowHeaders, TouchedRows, row_count, touched_rows

Headers = Iterable[Identity]

BY: Final = "a statement"
UNCLEAR: Final = (
    "a statement that does not show whose rows it writes (name one class or table, and the keys of its "
    "rows),"
)
MAY_OVERWRITE: Final = "an INSERT that may overwrite other rows,"
NO_KEY: Final = "a statement without a plain primary key, which does not show whose row it writes,"

ATOMIC: Final = "doclock_atomic"
"""The execution option of a statement made by atomic_update()."""


def is_atomic(statement: Any) -> bool:
    """Return whether atomic_update() has made the statement."""
    return bool(statement.get_execution_options().get(ATOMIC))


def stays_in_its_document(write: Write, target: Target, given: Collection[str]) -> bool:
    """Return whether a row that an INSERT updates certainly belongs to the new row's document.

    :param given: the names of the attributes that have values in the new rows.
    """
    conflict = conflict_of(write.statement)
    deciding = _deciding_attributes(target)
    if conflict is None or not deciding:
        return False
    # Kept: excluded.order_id on PostgreSQL and SQLite, inserted.order_id on MySQL, the old value.
    sets = conflict.sets.items()
    stay = {key for key, value in sets if isinstance(value, ColumnClause) and value.key == key}
    if not deciding.isdisjoint(map(target.attribute_of, conflict.sets.keys() - stay)):
        return False
    # Its value is new: no row has it yet.
    generated = getattr(write.table, "autoincrement_column", None)
    for key in _keys_of(conflict, write.table):
        columns = {*map(target.attribute_of, key)}
        is_new = generated is not None and target.attribute_of(generated) in columns - {*given}
        if not deciding <= columns and not is_new:
            return False
    return True


def _deciding_attributes(target: Target) -> set[str]:
    """Return the attributes that show a row's document; empty if they do not suffice."""
    if target.unclear:
        return set()
    names = set(chain.from_iterable(link.names for link in target.links))
    if is_header_target(target):
        return names.union(key_attributes(target.root))
    return set() if target.by_identity else names


def _keys_of(conflict: Conflict, table: Any) -> Iterator[Collection[Any]]:
    """Yield each key in which the new row may equal the existing one.

    MySQL, and a conflict without columns, mean any unique key that the Table declares.
    """
    if conflict.columns is not None:
        yield conflict.columns
        return
    for key in (*table.constraints, *table.indexes):
        is_key = isinstance(key, (PrimaryKeyConstraint, UniqueConstraint))
        if is_key or getattr(key, "unique", False):
            yield [*key.columns]


class InsertedFromSelect:
    """The rows that such a statement adds to one target with links to owners."""

    def __init__(self, check: StatementCheck) -> None:
        target, write = check.target, check.write
        self._check, self._target, self._write = check, target, write
        names, rows = select_of_insert(write.statement)
        selected = dict(zip(map(target.attribute_of, names), rows.subquery().c, strict=True))
        owners = dict.fromkeys(name for link in target.links for name in link.names)
        self._selected = {name: selected[name] for name in owners if name in selected}
        self._owners: dict[Link, dict[Identity, None]] = {link: {} for link in target.links}
        self._all = self._with_owner = self._before = 0  # numbers of rows

    def ask(self) -> Iterator[Row]:
        """Yield the values that name owners, each combination once."""
        columns = list(self._selected.values())
        if not columns:
            yield {}
            return
        asked = select(*columns, func.count()).group_by(*columns)
        for parameters in self._write.given:
            for *values, rows in self._check.ask_of_target(asked, parameters):
                row = dict(zip(self._selected, values, strict=True))
                keys = {link: tuple(map(row.get, link.names)) for link in self._owners}
                named = {link: key for link, key in keys.items() if not has_null(key)}
                for link, key in named.items():
                    self._owners[link][key] = None
                self._with_owner += rows if named else 0
                self._all += rows
                yield row
        self._before = self._count()

    def has_added_others(self, written: int | None) -> bool:
        """Return whether rows were added to documents that were not checked."""
        if not self._selected or (written is None and self._write.values.conditional):
            return False
        others = 0 if written is None else written - self._all
        return self._count() - self._before < self._with_owner + others

    def _count(self) -> int:
        number = select(func.count()).select_from(self._write.table)
        return sum(
            self._check.ask_of_target(number.where(where))[0][0] for where in self._of_owners()
        )

    def _of_owners(self) -> Iterator[ColumnElement[bool]]:
        """Yield disjoint conditions for the rows of these owners."""
        several = [
            ([self._target.column_of(name, self._write.table) for name in link.names], [*keys])
            for link, keys in self._owners.items()
            if keys
        ]
        if len(several) == 1:
            ((columns, keys),) = several
            yield from (key_in(columns, some) for some in chunks(keys))
        elif several:
            yield or_(*(key_in(columns, keys) for columns, keys in several))


class StatementCheck:
    """The check of the rows of one target that one statement writes.

    A write may concern two documents.  For ``UPDATE line SET order_id = 2 WHERE id = 7``, the
    database knows that line 7 belongs to order 1, which it leaves; only the values of the statement
    show that the line moves to order 2.  Both orders must be locked.

    :ivar asked: the number of rows that the statement was about to write; None: not counted.
    :ivar left: the number of rows without a document that another transaction has since assigned to
        one.
    :ivar headers: the documents that were checked, whose version the statement raises.
    :ivar new_keys: the documents whose primary key the statement sets, each with the new one.
    """

    def __init__(
        self,
        refusals: Refusals,
        target: Target,
        write: Write,
        coming: Collection[DocumentKey | None] = (),
    ) -> None:
        self._session, self._refusals, self._coming = refusals.session(), refusals, coming
        self.target, self.write = target, write
        self._ask_again()
        self._why = BY
        self._overwritten: Callable[[], Headers] = list
        self._inserted: InsertedFromSelect | None = None
        self.asked: int | None = None
        self._free = self.left = 0
        self.headers: dict[Identity, None] = {}
        self.new_keys: list[tuple[DocumentKey, Identity]] = []

    def _ask_again(self) -> None:
        """Forget the answers of the database."""
        self._rows = RowHeaders(
            self.target, HeaderResolver(self._session, self.target.root, ask=True)
        )

    def _allow(self, found: Headers) -> bool:
        """Return whether all these headers are locked; refuse the others."""
        found, root = dict.fromkeys(found), self.target.root  # thousands of rows have few headers
        self.headers.update(dict.fromkeys(key for key in found if key is not UNKNOWN))
        subject, did = f"{self.target.name} rows", f"would be {self.write.way.value} by"
        refusals = (
            Refusal(root, key, subject, f"{did} {self._why if key is UNKNOWN else BY}")
            for key in found
            if (root.class_, key) not in self._coming
        )
        return self._refusals.allow(refusals, {root: self._rows.resolver})

    # After the statement.

    def refuse_others(self, asked: int | None, written: int | None, result: Any) -> None:
        """Refuse written rows that were not checked before.

        :param written: the number of rows, if they were counted.
        :raises UnlockedWrite: it is unknown to which documents they belong.
        """
        if self._inserted is not None:
            others = self._inserted.has_added_others(row_count(result))
        else:
            others = asked is not None and written is not None and written > asked
        root = self.target.root
        if others or any(not self._refusals.permits(root, key) for key in self._overwritten()):
            did = (
                f"were {self.write.way.value} by a statement. Another transaction added some of them "
                "to it after the guard had read whose rows it would write. It wrote them"
            )
            subject = f"{self.target.name} rows"
            self._refusals.refuse_written(Refusal(root, UNKNOWN, subject, did))

    def note_written(self) -> None:
        """Raise the versions of the documents; record new headers, and new keys of headers."""
        target, refusals = self.target, self._refusals
        if declares(target.root, "version") and not self._raises_version():
            refusals.raise_versions(target.root, [key for key in self.headers if not has_null(key)])
        new = self.write.way is Way.INSERT and is_header_target(target) and not target.extended
        values = self.write.values
        # ON CONFLICT DO NOTHING may have kept the row of another transaction.
        unknown = values.conditional or values.from_select
        for row in self.write.rows if new and not unknown else ():
            # return_defaults=True has set the keys that the database generates.
            key = target.identity(target.by_attribute(row))
            if key is not None:
                refusals.add_inserted(document_key(target.root, key))
        for document, identity in self.new_keys:
            refusals.add_key(document, identity)

    def _raises_version(self) -> bool:
        """Return whether the write itself raises the document's version, as a write to its header does."""
        write, root, rows = self.write, self.target.root, self.write.values.rows
        if not is_header_target(self.target):
            return False
        if write.way is not Way.UPDATE or write.by_key or not callable(root.version_id_generator):
            return True  # SQLAlchemy requires the version in the rows, and raises it
        column: Any = root.version_id_col
        name = root.get_property_by_column(column).key
        return not rows or name in chain.from_iterable(map(self.target.by_attribute, rows))

    # The questions.

    def ask(self, question: Any) -> Iterator[tuple[Row, Sequence[Any]]]:
        """Yield the answers to a SELECT, with the parameters of each execution."""
        for given in self.write.given:
            yield given, ask(self._session, question, given, **self.write.how)

    def ask_of_target(self, question: Any, row: Row = immutabledict()) -> Sequence[Any]:  # noqa: B008  # it never changes
        """Return the answer to a SELECT of rows of the target, in the schema of the statement."""
        binds = {"mapper": self.target.root, **self.write.how.get("bind_arguments", {})}
        how = {**self.write.how, "bind_arguments": binds}
        question = question.execution_options(**self.write.schema_options)
        return ask(self._session, question, row, **how)

    # Before the statement.

    def before(self) -> None:
        """Check the write."""
        if not self._refusals.active:
            return
        if self.write.way is Way.INSERT:
            self._check_insert()
        elif not self._needs_no_lock():
            self._allow(self._headers_touched())
            if self._free:
                self._allow(self._lock_free())

    def _needs_no_lock(self) -> bool:
        """Return whether atomic_update() made the statement, and it changes only the headers' own rows."""
        target, root, write = self.target, self.target.root, self.write
        if not (is_atomic(write.statement) and is_header_target(target) and is_header(root, root)):
            return False
        changed = {name for row in write.values.rows for name in target.by_attribute(row)}
        # A parameter with an attribute's name would set that attribute.
        given = {name for row in write.given for name in target.by_attribute(row)}
        links = chain.from_iterable(link.names for link in target.links)
        attributes = (attr.key for attr in root.column_attrs)
        return changed.isdisjoint([*key_attributes(root), *links]) and given.isdisjoint(attributes)

    def _check_insert(self) -> None:
        target, values = self.target, self.write.values
        if target.unclear:
            self._allow([self._unknown(UNCLEAR)])
            return
        if values.from_select:
            self._allow(self._headers_selected())
            return
        rows = [*map(target.by_attribute, self.write.rows)]
        given = set(chain.from_iterable(rows))
        if values.overwrites and not stays_in_its_document(self.write, target, given):
            questions = self._rows_overwritten(rows)
            if questions is None:
                self._allow([self._unknown(MAY_OVERWRITE)])
                return
            stored = partial(self._headers_stored, questions)
            if self._allow(stored()):
                self._overwritten = stored  # and again after it has run
        self._allow(self._headers_of_rows(rows))

    def _headers_selected(self) -> Headers:
        """Yield the owners' headers that the SELECT of an INSERT names; its rows are counted later."""
        if self.write.values.overwrites or self.target.extended:
            yield self._unknown(MAY_OVERWRITE)
        elif self.target.links:
            self._inserted = InsertedFromSelect(self)
            for row in self._inserted.ask():
                yield from self._headers_of_values(row)

    def _rows_overwritten(self, rows: Sequence[Row]) -> Sequence[Select[Any]] | None:
        """Return the SELECTs of the rows that an INSERT may update; None if they are unknown."""
        target, conflict, table = self.target, conflict_of(self.write.statement), self.write.table
        mapper = target.mapper
        # Else not every row of the table is one of the target, which a SELECT of its class finds.
        whole = mapper is None or (mapper.selectable is table and not mapper.single)
        if conflict is None or not whole or target.extended:
            return None
        if not target.deciding.isdisjoint(map(target.attribute_of, conflict.sets)):
            return None
        found = list[Select[Any]]()
        for key in _keys_of(conflict, table):
            names = [*map(target.attribute_of, key)]
            values = {tuple(literal(row.get(name), row) for name in names) for row in rows}
            if not (all(map(is_plain, values)) and target.has({*names})):
                return None
            found += self._rows.select(target.columns(names), [*values])
        return found

    def _headers_stored(self, questions: Iterable[Select[Any]]) -> Headers:
        self._ask_again()
        for question in questions:
            for row in self.ask_of_target(question):
                yield from self._rows.of_stored(tuple(row[-len(self.target.read) :]))

    def _headers_touched(self) -> Headers:
        """Yield the headers of the rows that an UPDATE or DELETE writes, before and after it."""
        target, write = self.target, self.write
        if write.by_key and not target.unclear:
            yield from self._headers_of_rows([*map(target.by_attribute, write.rows)])
            return
        touched = None if target.unclear else touched_rows(write, target)
        if touched is None:
            yield self._unknown(UNCLEAR)
        else:
            yield from self._headers_found(touched)

    def _headers_found(self, touched: TouchedRows) -> Headers:
        """Yield the headers of the rows that the statement finds and counts, and those that its values name."""
        target, values = self.target, list[Row]()
        if self.write.way is Way.UPDATE:
            values = [*map(target.by_attribute, self.write.values.rows)] or [{}]
        self.asked = 0
        for parameters, answer in self.ask(touched.select_counted()):
            new = [{**row, **target.by_attribute(parameters)} for row in values]
            for row in new:
                yield from self._headers_of_values(row, of_row=False)
            for *found, rows in answer:
                self.asked += rows
                self._free += rows if self._is_free(found) else 0
                self._note_new_keys(tuple(found), values)
            yield from self._rows.of_all([(tuple(row[:-1]), new) for row in answer])

    def _is_free(self, row: Sequence[Any]) -> bool:
        if self.target.by_identity or self.target.mapper is None:
            return False
        return all(
            has_null(tuple(found[name] for name in link.names))
            for link, found in self.target.read_by_link(row)
        )

    def _lock_free(self) -> Headers:
        """Lock the rows without a document: others may assign them to one before they are written."""
        touched = touched_rows(self.write, self.target, to_lock=True)
        mapper = self.target.mapper
        assert mapper is not None
        if touched is None:
            yield self._unknown(UNCLEAR)
            return
        no_owner = (
            or_(*(touched.column(name).is_(None) for name in link.names))
            for link in self.target.links
        )
        rows = touched.select(key_attributes(mapper)).where(*no_owner)
        locking = add_lock(rows, touched.entity, LockOptions.ForUpdate)
        # Session.execute() itself: this is no lock of a document.
        found = [
            Session.execute(self._session, locking, given, **self.write.how).all()
            for given in self.write.given
        ]
        self.left = self._free - sum(map(len, found))

    def _note_new_keys(self, identity: Identity, values: Iterable[Row]) -> None:
        if not is_header_target(self.target):
            return
        names = key_attributes(self.target.root)
        for row in values:
            key = tuple(
                literal(row.get(name, old), row) for name, old in zip(names, identity, strict=True)
            )
            if key != identity and not any(isinstance(value, ClauseElement) for value in key):
                self.new_keys.append((document_key(self.target.root, identity), key))

    def _headers_of_rows(self, rows: Sequence[Row]) -> Headers:
        """Yield the headers of rows that are given with their written values."""
        target = self.target
        if self.write.way is Way.UPDATE or target.extended:
            yield from self._headers_by_key(rows)
        if self.write.values.overwrites and is_header_target(target):
            for key in map(target.identity, rows):  # perhaps of an existing header
                if key is None:
                    yield self._unknown(MAY_OVERWRITE)
                else:
                    yield from self._rows.resolver.headers_of_row(target.root, key)
        yield from self._rows.resolver.read_together(
            lambda: [*chain.from_iterable(map(self._headers_of_values, rows))]
        )

    def _headers_by_key(self, rows: Iterable[Row]) -> Headers:
        """Yield the headers of the rows that have these keys, before and after the statement."""
        target, number = self.target, len(self.target.key)
        new: defaultdict[Identity, list[Row]] = defaultdict(list)
        loaded = self.write.loaded
        told = {key: of for key, of in loaded.items() if is_told(of.mapper, target)}
        if target.of_any_kind:  # they are of another class yet
            told = {}
        self._rows.resolver.read_ahead([*told.values()])
        for values in rows:
            key = target.identity(values)
            if key is None:
                yield self._unknown(NO_KEY)
            elif key in told:
                yield from self._rows.resolver.headers(told[key])
            else:
                new[key].append(values)
        found = list[tuple[Identity, Collection[Row]]]()
        for question in self._rows.select(target.columns(target.key), [*new]):
            for row in ask(self._session, question, bind_arguments=target.bind_arguments):
                key, read = tuple(row[:number]), tuple(row[number:])
                found.append((read, new.get(key) or [*chain.from_iterable(new.values())]))
        yield from self._rows.of_all(found)

    def _headers_of_values(self, row: Row, *, of_row: bool = True) -> Headers:
        """Yield the headers to which a new row, or a row with new values, belongs.

        :param of_row: False: values that depend on the row itself are checked with the row.
        """
        known = {name: literal(value, row) for name, value in row.items()}
        for link in self.target.links:
            if not takes(link.discriminators, known):
                continue
            # If an UPDATE sets part of a composite key, the rest is in the row.  The table may set
            # a name that the statement omits.
            key, left_out = tuple(map(known.get, link.names)), {*link.names} - known.keys()
            in_part = self.write.way is Way.UPDATE and 0 < len(left_out) < len(link.names)
            if (
                in_part
                or self.target.generates(left_out, self.write.way)
                or any(isinstance(value, ClauseElement) for value in key)
            ):
                names = " and ".join(link.names)
                yield self._unknown(
                    f"a statement whose {names} does not show whose row it becomes,"
                )
            elif of_row or not link.discriminators:
                yield from self._rows.of_owner(link, known)

    def _unknown(self, why: str) -> Identity:
        """Return the header of a row that does not show it, and note the words for the refusal."""
        self._why = why
        return UNKNOWN
