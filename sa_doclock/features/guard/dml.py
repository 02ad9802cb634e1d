"""The guard for statements: ORM-enabled and Core UPDATE, DELETE and INSERT in a session.

The documents that an UPDATE or DELETE would write to are read from the database with the
statement's own WHERE clause; those that an INSERT adds rows to are in its values.  A
statement whose documents cannot be found, such as INSERT .. FROM SELECT, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, product
from typing import Any

from sqlalchemy import ClauseElement, Insert, Update, select
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from ...core.documents import UNKNOWN, HeaderResolver, document_key, has_null, key_attributes
from ...core.lock_info import DocumentKey, Identity
from ...core.sqlalchemy_internals import autoflush, values_of
from ...core.statements import chunks, key_in
from ...dialects import schema_translation
from .flush import FlushGuard
from .refusals import Refusal, Refusals
from .returned import keys_of_result
from .rows import Write
from .targets import Link, Row, Target, is_header_target, literal, targets_of, targets_of_class
from .upserts import stays_in_its_document


class DmlGuard:
    """The guard of one session for statements, and for writes without a flush."""

    def __init__(self, refusals: Refusals, flushes: FlushGuard) -> None:
        self._session, self._refusals = refusals.session, refusals
        self._flushes, self._documents = flushes, refusals.documents

    @contextmanager
    def statement(
        self, statement: Any, parameters: Any, how: Mapping[str, Any]
    ) -> Iterator[Callable[[Any], Any]]:
        """Check the statement, which is executed in the block.

        Yields a function for its result, which it returns after it has noted the keys of new
        headers that the result tells.

        :param how: the execution options and bind arguments that it is executed with.
        :raises UnlockedWrite: it would write to a document that is not held ForUpdate.
        """
        targets = targets_of(statement) if self._refusals.enabled else ()
        if targets:
            self._flush_before(statement, how)
        write = _write_of(statement)
        with self._run(targets, write, lambda one: one.statement(statement, parameters, how)):
            yield partial(self._note_returned, statement, targets, write)

    def _note_returned(
        self, statement: Any, targets: Iterable[Target], write: Write, result: Any
    ) -> Any:
        if write is Write.INSERT and not values_of(statement).conditional:
            for target in filter(is_header_target, targets):
                result, keys = keys_of_result(statement, target, result)
                for key in keys:
                    self._documents.add_inserted(document_key(target.root, key))
        return result

    @contextmanager
    def objects(self, instances: Collection[Any]) -> Iterator[None]:
        """Check objects that are written in the block without a flush.

        :raises UnlockedWrite: one of them is of a document that is not held ForUpdate.
        """
        new = [state for one in instances if (state := instance_state(one)).key is None]
        with self._session().no_autoflush:
            self._flushes.check_objects(instances)
        yield
        for state in new:
            self._flushes.add_inserted(state)

    @contextmanager
    def rows(self, mapper: Mapper[Any], rows: Sequence[Row], write: Write) -> Iterator[None]:
        """Check rows that are written by primary key in the block.

        :raises UnlockedWrite: one of them is of a document that is not held ForUpdate.
        """
        targets = targets_of_class(mapper) if self._refusals.enabled else ()
        with self._run(targets, write, lambda check: check.rows(rows)):
            yield
        if write is Write.INSERT:  # return_defaults=True has set the keys that the database gave
            for target in filter(is_header_target, targets):
                keys = (target.identity(target.by_attribute(row)) for row in rows)
                for key in filter(None, keys):
                    self._documents.add_inserted(document_key(target.root, key))

    @contextmanager
    def _run(
        self,
        targets: Iterable[Target],
        write: Write,
        check: Callable[[_Check], Iterable[DocumentKey]],
    ) -> Iterator[None]:
        """Run the checks, then the block, and record the new documents that the checks return."""
        session = self._session()
        inserted: list[DocumentKey] = []
        checks = [_Check(session, self._refusals, target, write) for target in targets]
        if checks:
            self._refusals.reset_warnings()
        with session.no_autoflush:
            for one in checks:
                inserted += check(one)
        yield
        for key in inserted:
            self._documents.add_inserted(key)
        for document, identity in chain.from_iterable(one.new_keys for one in checks):
            self._documents.add_key(document, identity)

    def _flush_before(self, statement: Any, how: Mapping[str, Any]) -> None:
        # The execution would flush too, but the rows that the check finds depend on it.
        session = self._session()
        options = {**statement.get_execution_options(), **how.get("execution_options", {})}
        autoflush(session, options)


class _Check:
    """The check of the rows of one target that one statement writes.

    A write concerns a document in two ways.  Of ``UPDATE line SET order_id = 2 WHERE id = 7``
    the database knows that line 7 is of order 1, which the line leaves; only the values of the
    statement know that the line comes to order 2.  Both orders must be locked.
    """

    def __init__(self, session: Session, refusals: Refusals, target: Target, write: Write) -> None:
        self._session, self._refusals = session, refusals
        self._target, self._write = target, write
        self._resolver = HeaderResolver(session, target.root, ask=True)
        self._found: list[Refusal] = []
        self.new_keys: list[tuple[DocumentKey, Identity]] = []
        """The documents whose primary key the statement sets, each with the new one."""

    def rows(self, rows: Iterable[Row], *, overwrites: bool = False) -> list[DocumentKey]:
        """Check rows that are given with all that is written; return the new documents.

        :param overwrites: an INSERT may update the row of the same document that is there already.
        """
        named = [self._target.by_attribute(row) for row in rows]
        if self._refusals.active:
            if self._write is Write.UPDATE:
                self._check_keys([self._target.identity(row) for row in named])
            if overwrites and is_header_target(self._target):
                self._check_overwritten(named)
            for row in named:
                self._check_owners(row)
            self._settle()
        return self._new_documents(named)

    def _new_documents(self, rows: Iterable[Row]) -> list[DocumentKey]:
        target = self._target
        if self._write is not Write.INSERT or not is_header_target(target):
            return []
        keys = map(target.identity, rows)
        return [document_key(target.root, key) for key in keys if key is not None]

    def statement(
        self, statement: Any, parameters: Any, how: Mapping[str, Any]
    ) -> list[DocumentKey]:
        """Check a statement; return the new documents."""
        if self._write is Write.INSERT:
            return self._check_insert(statement, _listed(parameters))
        if self._refusals.active:
            self._check_touched(statement, parameters, how)
            self._settle()
        return []

    def _check_insert(self, statement: Insert, given: Sequence[Row]) -> list[DocumentKey]:
        values = values_of(statement)
        rows = [{**row, **more} for row, more in product(values.rows or ({},), given)]
        if (values.from_select or self._may_leave(statement, rows)) and self._refusals.active:
            by = "INSERT .. FROM SELECT" if values.from_select else "an INSERT that may overwrite"
            self._refuse(UNKNOWN, f"{by}, which does not tell of what,")
            self._settle()
            return []
        new = self.rows(rows, overwrites=values.overwrites)
        # ON CONFLICT DO NOTHING may have left the row of another transaction where it was.
        return [] if values.conditional else new

    def _may_leave(self, statement: Insert, rows: Iterable[Row]) -> bool:
        """Return whether an INSERT may update a row of another document than that of the new row."""
        given = set(chain.from_iterable(map(self._target.by_attribute, rows)))
        return values_of(statement).overwrites and not stays_in_its_document(
            statement, self._target, given
        )

    def _check_touched(self, statement: Any, parameters: Any, how: Mapping[str, Any]) -> None:
        target = self._target
        values = self._values_set(statement)
        if target.unclear:
            self._refuse(UNKNOWN, "a statement that does not tell of what,")
        elif values and target.by_key and isinstance(parameters, (list, tuple)):
            self.rows({**row, **given} for row, given in product(values, parameters))
        else:
            self._check_where(statement, values, _listed(parameters), how)

    def _values_set(self, statement: Any) -> list[Row]:
        """Return the values that an UPDATE sets, of which there is one row at least."""
        if self._write is not Write.UPDATE:
            return []
        return [self._target.by_attribute(row) for row in values_of(statement).rows] or [{}]

    def _check_where(
        self, statement: Any, values: Sequence[Row], given: Sequence[Row], how: Mapping[str, Any]
    ) -> None:
        options = schema_translation(statement.get_execution_options())
        touched = select(*self._target.columns).distinct().execution_options(**options)
        if statement.whereclause is not None:
            touched = touched.where(statement.whereclause)
        for parameters in given:
            for row in values:
                self._check_owners({**row, **self._target.by_attribute(parameters)})
            for found in self._session.execute(touched, parameters, **how).all():
                self._check_row(tuple(found))
                self._note_new_keys(tuple(found), values)

    def _note_new_keys(self, identity: Identity, values: Iterable[Row]) -> None:
        if not is_header_target(self._target):
            return
        names = key_attributes(self._target.root)
        for row in values:
            key = tuple(
                literal(row.get(name, old), row) for name, old in zip(names, identity, strict=True)
            )
            if key != identity and not any(isinstance(one, ClauseElement) for one in key):
                self.new_keys.append((document_key(self._target.root, identity), key))

    def _check_keys(self, keys: Iterable[Identity | None]) -> None:
        """Check the documents that rows of these primary keys belong to now."""
        target = self._target
        assert target.mapper is not None
        columns = [getattr(target.mapper.class_, name) for name in key_attributes(target.mapper)]
        for some in chunks([key for key in keys if key is not None]):
            touched = select(*target.columns).where(key_in(columns, some))
            for row in self._session.execute(touched).all():
                self._check_row(tuple(row))

    def _check_overwritten(self, rows: Iterable[Row]) -> None:
        """Check the headers that are there already, whose keys the rows have."""
        target = self._target
        assert target.mapper is not None
        for identity in map(target.identity, rows):
            if identity is None:
                self._refuse(UNKNOWN, "an INSERT that may overwrite, without its key,")
            else:
                self._check_headers(target.mapper, identity)

    def _check_row(self, row: Identity) -> None:
        """Check the documents of a row of ``target.columns``."""
        if self._target.by_identity:
            assert self._target.mapper is not None
            self._check_headers(self._target.mapper, row)
            return
        for link in self._target.links:
            key, row = row[: len(link.names)], row[len(link.names) :]
            if not has_null(key):
                self._check_link(link, key)

    def _check_owners(self, row: Row) -> None:
        """Check the documents that a new row, or new values of a row, come to."""
        for link in self._target.links:
            key = tuple(literal(row.get(name), row) for name in link.names)
            if self._is_unclear(link, row, key):
                names = " and ".join(link.names)
                self._refuse(UNKNOWN, f"a statement whose {names} does not tell of what,")
            elif not has_null(key):
                part, resolver = link.part, self._resolver
                owners = [key] if part is None else resolver.owners_by_reference(part, key)
                for owner in owners:
                    self._check_link(link, owner)

    def _is_unclear(self, link: Link, row: Row, key: Identity) -> bool:
        """Return whether the values do not say which owner the row comes to.

        A composite key that an UPDATE sets in part has its other part in the row, and a name
        that an INSERT leaves out may have a default.
        """
        given = [name in row for name in link.names]
        unclear_in_part = {Write.UPDATE: any(given), Write.INSERT: link.has_default}
        if not all(given) and unclear_in_part.get(self._write):
            return True
        return any(isinstance(value, ClauseElement) for value in key)

    def _check_link(self, link: Link, owner: Identity) -> None:
        if link.types:
            self._resolver.note_types(owner, link.types)
        self._check_headers(link.owner, owner)

    def _check_headers(self, mapper: Mapper[Any], identity: Identity) -> None:
        """Check the documents of the row of this class that has this primary key."""
        for header in self._resolver.headers_of_row(mapper, identity):
            if not self._refusals.permits(self._target.root, header):
                self._refuse(header)

    def _refuse(self, identity: Identity, by: str = "a statement") -> None:
        what = f"{self._target.name} rows would be {self._write.value} by {by}"
        self._found.append(Refusal(self._target.root, identity, what, what))

    def _settle(self) -> None:
        """Refuse the documents that are not held, by the keys that the database has for them."""
        if self._found:
            refusals = dict.fromkeys(self._found)
            self._refusals.refuse_all(refusals, {self._target.root: self._resolver})


def _write_of(statement: Any) -> Write:
    if isinstance(statement, Insert):
        return Write.INSERT
    return Write.UPDATE if isinstance(statement, Update) else Write.DELETE


def _listed(parameters: Any) -> list[Row]:
    """Return the parameters of each execution, of which there is one at least."""
    return [parameters] if isinstance(parameters, Mapping) else list(parameters or ()) or [{}]
