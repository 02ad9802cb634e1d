"""atomic_update() and check-outs: the rows are locked, and compared, before the UPDATE writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Column
from sqlalchemy.orm import Mapper, Session

from ...core.documents import HeaderResolver, declares, key_attributes
from ...core.ledger import place_of
from ...core.statements import add_lock
from ...core.transaction import add_document, database_name, make_plan, open_for_lock
from ...dialects import strategy_for
from ...dialects.base import Locked, LockStrategy
from ...errors import DocLockError, LockMisuse, SnapshotConflict
from ...guard import Target, Write, is_header_target, rows_written, targets_here, touched_rows
from ...keys import DocumentKey
from ...options import LockOptions
from ...sqlalchemy_internals import autoflush


@contextmanager
def compared_with_checkouts(
    part: Any, statement: Any, parameters: Any, how: Mapping[str, Any]
) -> Iterator[Callable[[Any], Any]]:
    """Lock the headers that the UPDATE is about to write, compare them, and execute it in the block.

    :raises CheckedOut: somebody has one of them; nothing is written.
    """
    state = part.reader.state
    session, opens = state.session(), not state.session().in_transaction()
    write = Write(statement, parameters, how)
    found = filter(is_header_target, targets_here(session, write))
    targets = [target for target in found if declares(target.root, "checkout")]
    written = set[DocumentKey]()
    try:
        if targets:
            autoflush(session, write.options)
        for target in targets:
            connection = part.reader.connection(target.root, writes=True)
            part.reader.check_place(target.root, place_of(connection, write.options))
            written |= _locked(part, target, write)
        part.refuse_taken([key for key in written if not state.ledger.may_write(key)])
    except DocLockError:
        if opens:
            state.roll_back_quietly()
        raise
    yield lambda result: _counted(part, targets, len(written), statement, result)


def _locked(part: Any, target: Target, write: Write) -> set[DocumentKey]:
    """Lock the target's rows that the statement is about to write, and return their documents."""
    mapper, root = target.mapper, target.root
    touched = touched_rows(write, target, to_lock=True)
    if touched is None or target.unclear or mapper is None:
        raise LockMisuse(
            f"atomic_update() of {target.name} rows cannot compare check-outs, because the statement does not "
            "show which documents it writes: name the class and its own columns in where()"
        )
    names = _columns_to_lock(mapper, _fit_connection(part, root))
    locking = add_lock(touched.select(names), touched.entity, LockOptions.ForUpdate)
    session = part.reader.state.session()
    width, resolver = len(key_attributes(mapper)), HeaderResolver(session, root, ask=True)
    return {
        (root.class_, header)
        for given in write.given
        # Session.execute() itself: this is no lock of a document.
        for row in Session.execute(session, locking, given, **write.how).all()
        for header in resolver.headers_of_row(mapper, tuple(row[:width]))
    }


def _fit_connection(part: Any, root: Mapper[Any]) -> LockStrategy:
    """Prepare the documents' transaction for the lock, and return the dialect.

    :raises LockNotSupported: the connection is in AUTOCOMMIT.
    """
    connection = part.reader.connection(root, writes=True)
    strategy = strategy_for(connection)
    strategy.check_autocommit(connection)
    if strategy.statements.locked is Locked.DATABASE:
        plan = make_plan(None, LockOptions.ForUpdate, strategy, upgrades=True)
        open_for_lock(part.reader.state, connection, plan, None)
    return strategy


def _columns_to_lock(mapper: Mapper[Any], strategy: LockStrategy) -> list[str]:
    """Return the attributes for the locking SELECT, the primary key first."""
    names = [*key_attributes(mapper)]
    if strategy.statements.locked is Locked.WHAT_IS_READ:
        columns = (attr.key for attr in mapper.column_attrs if isinstance(attr.columns[0], Column))
        names += (name for name in columns if name not in names)
    return names


def _counted(part: Any, targets: list[Target], asked: int, statement: Any, result: Any) -> Any:
    """Return the result.  :raises SnapshotConflict: the statement wrote more rows than were locked."""
    if not targets:
        return result
    result, count = rows_written(statement, result)
    if count is not None and count > asked:
        state, root = part.reader.state, targets[0].root
        error = SnapshotConflict(
            "atomic_update() has written rows that another transaction brought into its where() after "
            "their check-outs were compared; run the whole transaction again"
        )
        add_document(
            error, root.class_, None, None, database_name(state.session(), {"mapper": root})
        )
        state.transaction.refuse_from_now_on(error)
        raise error
    return result
