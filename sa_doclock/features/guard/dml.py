"""The guard for statements: ORM-enabled and Core UPDATE, DELETE and INSERT in a session.

The documents that an UPDATE or DELETE would write to are read from the database with the
statement's own WHERE clause; those that an INSERT adds rows to are in its values, or in its
SELECT.  After it the rows that were written are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import Any

from sqlalchemy import Insert, Update
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.attributes import instance_state

from ...core.documents import ask, document_key
from ...core.lock_info import DocumentKey
from ...core.sqlalchemy_internals import autoflush
from .dml_internals import values_of
from .flush import FlushGuard
from .returned import keys_of_result
from .statement_check import StatementCheck
from .targets import (
    Row,
    Target,
    is_header_target,
    listed,
    other_tables,
    targets_by_key,
    targets_of,
    targets_of_entity,
    targets_of_new_kinds,
    targets_of_new_rows,
)
from .touched import brings_into_its_where, covers, rows_written, select_number
from .untold import rows_of_untold
from .writes import Write


class DmlGuard:
    """The guard of one session for statements, and for writes without a flush."""

    def __init__(self, flushes: FlushGuard) -> None:
        self._refusals, self._documents = flushes.refusals, flushes.documents
        self._session, self._flushes = flushes.refusals.session, flushes

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
        targets = targets_of(statement, parameters) if self._refusals.enabled else ()
        if targets:
            self._flush_before(statement, how)
        write = _write_of(statement)
        run = self._run(targets, write, lambda one: one.statement(statement, parameters, how))
        with run as checks:
            asked = self._asked(checks, statement, parameters, how)
            yield partial(self._after, statement, write, checks, asked)

    def _asked(
        self,
        checks: Sequence[StatementCheck],
        statement: Any,
        parameters: Any,
        how: Mapping[str, Any],
    ) -> int | None:
        """Return how many rows the statement would write now; None if they are not counted."""
        if not _can_count(checks, statement, listed(parameters)):
            return None
        left, first = sum(one.left for one in checks), checks[0]
        if checks == [first] and covers(first.target, statement):
            return (first.asked or 0) - left
        return self._ask_number(statement, listed(parameters), how) - left

    def _ask_number(self, statement: Any, given: Iterable[Row], how: Mapping[str, Any]) -> int:
        number, session = select_number(statement), self._session()
        counts = [ask(session, number, parameters, **how) for parameters in given]
        return sum(int(count) for ((count,),) in counts)

    def _after(
        self,
        statement: Any,
        write: Write,
        checks: Sequence[StatementCheck],
        asked: int | None,
        result: Any,
    ) -> Any:
        """Check what the statement has written; return its result, which can still be read.

        :raises UnlockedWrite: rows that were not asked about; nothing of the transaction can be
            committed.
        """
        written = None
        if asked is not None:
            result, written = rows_written(statement, result)
        for check in checks:
            if check.has_written_others(asked, written, result):
                self._refusals.refuse_written(check.refusal_of_others())
        return self._note_returned(statement, [one.target for one in checks], write, result)

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
        states = [*map(instance_state, instances)]
        new = [state for state in states if state.key is None]
        with self._session().no_autoflush:
            self._flushes.check_objects(instances)
        with ExitStack() as checks:
            for mapper, write, rows in rows_of_untold(states):
                checks.enter_context(self.rows(mapper, rows, write))
            yield
        for state in new:
            self._flushes.add_inserted(state)

    @contextmanager
    def rows(self, mapper: Mapper[Any], rows: Sequence[Row], write: Write) -> Iterator[None]:
        """Check rows that are written by primary key in the block.

        :raises UnlockedWrite: one of them is of a document that is not held ForUpdate.
        """
        targets: tuple[Target, ...] = ()
        if self._refusals.enabled and write is Write.INSERT:
            targets = targets_of_new_rows(targets_of_entity(mapper), mapper.local_table, mapper)
        elif self._refusals.enabled:
            targets = targets_by_key(mapper)
            targets += tuple(targets_of_new_kinds(targets, rows))
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
        check: Callable[[StatementCheck], Iterable[DocumentKey]],
    ) -> Iterator[Sequence[StatementCheck]]:
        """Run the checks, then the block, and record the new documents that the checks return."""
        session = self._session()
        inserted: list[DocumentKey] = []
        checks = [StatementCheck(session, self._refusals, target, write) for target in targets]
        if checks:
            self._refusals.reset_warnings()
        with session.no_autoflush:
            for one in checks:
                inserted += check(one)
        yield checks
        for key in inserted:
            self._documents.add_inserted(key)
        for document, identity in chain.from_iterable(one.new_keys for one in checks):
            self._documents.add_key(document, identity)

    def _flush_before(self, statement: Any, how: Mapping[str, Any]) -> None:
        # The execution would flush too, but the rows that the check finds depend on it.
        session = self._session()
        options = {**statement.get_execution_options(), **how.get("execution_options", {})}
        autoflush(session, options)


def _write_of(statement: Any) -> Write:
    if isinstance(statement, Insert):
        return Write.INSERT
    return Write.UPDATE if isinstance(statement, Update) else Write.DELETE


def _can_count(checks: Sequence[StatementCheck], statement: Any, given: Sequence[Row]) -> bool:
    """Return whether the driver's number of rows is that of the rows that were asked about."""
    if not checks or any(one.asked is None for one in checks):
        return False
    if isinstance(statement, Update) and other_tables(statement):
        return False  # of several tables the driver gives the number of all rows
    # else a row may be written for two of the parameters
    return not brings_into_its_where(statement, checks[0].target, given)
