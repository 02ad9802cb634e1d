"""SQLAlchemy's own ``with_for_update()`` in a LockingSession: a lock that is real and recorded.

The statement, its autoflush and its isolation level stay SQLAlchemy's.  If its SQL would lock
nothing, the session takes the lock: by the transaction, or by a table hint.  The result is fresh.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial, reduce
from operator import getitem, itemgetter
from typing import Any, Final

from sqlalchemy import Connection, Engine, Result, Table
from sqlalchemy.orm import InstanceState, Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from ..core.documents import document_key, document_root, root_of
from ..core.loading import (
    PENDING_BEFORE,
    PendingChange,
    Unreadable,
    changed_since,
    in_session_order,
    load_again,
    pending_changes,
    role_of,
)
from ..core.locking import Found, LockTarget, acquire, refuse_unsaved
from ..core.same_tables import is_another_table, is_of_another_engine
from ..core.statements import add_hints, add_suffixes
from ..core.transaction import (
    LockCall,
    LockContext,
    LockPlan,
    LockRequest,
    TransactionConnection,
    add_document,
    database_name,
    make_plan,
    open_for_lock,
)
from ..dialects import NO_TEXT, check_support, has_hints, locking_read_is_latest
from ..dialects.base import READ_COMMITTED, Locked, LockStrategy, PlainReads, lock_in_select
from ..errors import DocLockError, UnsavedChanges, WrongIsolation
from ..keys import DocumentKey, Identity, document_label, public_key
from ..options import LockOptions, is_row_lock
from ..sqlalchemy_internals import (
    autoflush,
    buffer_rows,
    narrowed,
    objects_at,
    options_of,
    refreshed_by,
)
from .changed_rows import CHANGED, changed_beside, changed_rows
from .compiled_locks import CompiledLocks
from .for_update import froms_to_hint, inner_select, with_inner_select
from .loaded_headers import LoadedHeaders, may_overwrite
from .locked_headers import (
    Adopted,
    KeyPlaces,
    ReadBeside,
    Statement,
    adopted_by,
    check_headers,
    columns_beside,
    declared_on_same_table,
    without_documents,
)
from .rows_beside import RowsBeside
from .unread_rows import expire_unread, roots_unread

_READ_ANEW: Final = frozenset({None, "READ UNCOMMITTED", READ_COMMITTED})
"""The isolation levels at which each statement reads the rows as of its begin; None: unknown.  At
the others, a plain read after a lock may be older than the locking read.
"""

Run = Callable[..., Result[Any]]
Collision = tuple[InstanceState[Any], str]
"""A header, and the text of the error: the next flush would overwrite another session's write."""

_TOUCHED: Final = "a listener changed {} while the session waited for the lock. Change it after the lock is granted"


def execute_for_update(
    context: LockContext,
    statement: Statement,
    lock: LockOptions,
    run: Run,
    execution_options: Mapping[str, Any],
    bind_arguments: Mapping[str, Any],
) -> Result[Any]:
    """Run the statement with a real lock, and record the headers whose rows it returns.

    :raises LockNotSupported: this database has no such lock, or not for such a statement.
    :raises UnsavedChanges: another session has changed a column with a pending change, or a row
        that is to be deleted here.
    """
    adopted = adopted_by(statement)
    mapper = adopted.mapper
    arguments = {"clause": statement, **bind_arguments}
    if mapper is not None:
        arguments = {"mapper": mapper, **arguments}
    if any(key.other is not None for key in adopted.keys):
        # Excludes the keys of classes that the session has in another database.
        engine = context.session().get_bind(**arguments).engine
        here = [
            key
            for key in adopted.keys
            if key.other is None or not is_of_another_engine(context.session(), key.root, engine)
        ]
        adopted = adopted._replace(keys=here)
    entity = None if mapper is None else mapper.class_
    request = LockRequest(entity, None, lock, mapper=mapper, bind_arguments=arguments, as_is=True)
    options = {**statement.get_execution_options(), **execution_options}
    # Later changes by the program's listeners are not part of it.
    refreshes = refreshed_by(options) is not None
    before = context.calls.before_refresh if refreshes else options.get(PENDING_BEFORE)
    if before is None:
        before = pending_changes(context.session())
    return acquire(AdoptedRows(context, request, statement, adopted, run, options, before))


class AdoptedRows(LockTarget[Result[Any]]):
    """The rows that the program's own statement locks.

    :param run: executes the statement as the program wanted.
    :param statement: as the program has written it.
    :param options: the execution options of both.
    :param before: the session's pending changes when the program asked for the lock.
    :ivar reads_more: the statement, as sent, reads more than rows of one table.
    :ivar writes: it also writes rows, in a CTE, and must not be sent twice.
    :ivar unread: the roots of rows that it locks and returns neither as objects nor by key.
    :ivar unreadable: expired attributes of their parts, which no access loads.
    :ivar _waits: whether the lock is in the statement.
    :ivar _added: the number of columns at the end of a row that only the lock needs.
    :ivar _loaded: the session's objects of these classes before it, if the session had any objects.
    :ivar _headers: the locked objects that the statement returned.
    :ivar _objects: all returned objects, if it reads more than rows of one table.
    :ivar _keys: the keys of locked headers that it returned instead of objects.
    :ivar _touched: the objects that listeners changed before the lock was granted.
    :ivar _by_index: the roots whose rows may be unlocked, see :func:`check_headers`.
    """

    reads_more = False
    writes = False
    unread: Collection[Mapper[Any]] = ()
    _executed = False
    _waits = False
    _added = 0
    _loaded: LoadedHeaders | None = None
    _headers: Sequence[Any] = ()
    _objects: Sequence[Any] = ()
    _keys: Sequence[tuple[Mapper[Any], Identity]] = ()
    _by_index: Container[tuple[Mapper[Any], bool]] = ()

    def __init__(
        self,
        context: LockContext,
        request: LockRequest,
        statement: Statement,
        adopted: Adopted,
        run: Run,
        options: Mapping[str, Any],
        before: AbstractSet[PendingChange],
    ) -> None:
        super().__init__(context, request)
        self._written, self._statement, self._adopted = statement, statement, adopted
        self._run, self._options, self._before = run, options, before
        self.options = (options,)
        self.roots = {*adopted.roots, *(key.root for key in adopted.keys)}
        self.unreadable: Unreadable = {}
        self._touched: set[InstanceState[Any]] = set()

    def check(self, request: LockRequest) -> None:
        """See :class:`LockTarget`: the lock order applies to it too."""
        if self.context.options.ranks and is_row_lock(request.lock):
            for root in self.roots:
                self.context.ledger.check_order(root)

    def prepare(
        self, bind: Engine | Connection, strategy: LockStrategy, request: LockRequest
    ) -> tuple[TransactionConnection, LockPlan]:
        """Put the lock into the statement, or else into the transaction, whose level stays unchanged."""
        lock = request.lock
        row_lock = lock_in_select(strategy.statements, lock, READ_COMMITTED)
        if not is_row_lock(row_lock):
            return self._take_in_transaction(bind, strategy)
        self._waits = True
        self._by_index = check_headers(self._statement, strategy.statements, lock)
        self._statement, self._added = _locking(self._statement, lock, row_lock, strategy)
        connections = self.context.connections
        opens = connections.by_engine.get(bind.engine) is None and not (
            isinstance(bind, Connection) and bind.in_transaction()
        )
        joined = connections.find(Session.connection(self.session, {"bind": bind}))
        assert joined is not None
        strategy.check_autocommit(joined.connection)
        if not (opens and locking_read_is_latest(strategy.isolation)):
            self._check_level(joined, strategy)
        return joined, LockPlan(strategy, lock, None, row_lock, table=None)

    def _check_level(self, joined: TransactionConnection, strategy: LockStrategy) -> None:
        """Check that parts of a declared document cannot be read as of before the lock.

        :raises WrongIsolation: they can at the transaction's level, which the program chose.
        """
        declared = {root for root in self.roots if document_root(root) is root}
        level = self.context.connections.current_level(joined) if declared else None
        reads = strategy.isolation.plain_reads.get(level or "", PlainReads(0))
        if PlainReads.OLDER in reads:
            raise WrongIsolation(
                f"the transaction is open at {level}, where a read after the lock can return rows from before "
                "it: a flush would overwrite another transaction's change of a part. Lock by "
                "session.get_entity() before any other statement: it sets the level. Or make the engine "
                f'with isolation_level="{READ_COMMITTED}"'
            )

    def _take_in_transaction(
        self, bind: Engine | Connection, strategy: LockStrategy
    ) -> tuple[TransactionConnection, LockPlan]:
        mapper, lock = self.mapper, self.request.lock
        if mapper is not None and not isinstance(root_of(mapper).local_table, Table):
            mapper = None
        plan = strategy.findings.get((LockPlan, mapper, lock, True)) or make_plan(
            mapper, lock, strategy, upgrades=True
        )
        return open_for_lock(self.context, bind, plan, None), plan

    def send(
        self, connection: TransactionConnection, plan: LockPlan, request: LockRequest
    ) -> Found:
        """Execute the statement, and read again the rows that the session had loaded."""
        self._executed = True
        touched = changed_since(self.session, self._before)
        roots = self.roots
        if any(role_of(root, state.mapper) is not None for state in touched for root in roots):
            # A flush would write a listener's values, computed from before the lock.
            with self.session.no_autoflush:
                result = self._execute(connection, plan)
        else:
            if self.mapper is not None:  # SQLAlchemy flushes only before ORM statements
                autoflush(self.session, self._options)
            result = self._execute(connection, plan)
        # No row has been loaded yet.
        self._touched = {*touched, *changed_since(self.session, self._before)}
        if _is_streamed(self._options):  # the rows are locked one after the other
            return Found(self._own_columns(result), lasts=False)
        # Rows read beside the locked ones may be older than the lock, and can be read again.
        level = self.context.connections.current_level(connection)
        beside = self._waits and self.reads_more and level in _READ_ANEW
        self._note_returned(result, reads_beside=beside)
        return Found(self._own_columns(result), lasts=bool(self._headers or self._keys))

    def _own_columns(self, result: Result[Any]) -> Result[Any]:
        if not self._added:
            return result
        described = self._written.column_descriptions
        first = described[0]
        alone = len(described) == 1 and first["expr"] is first.get("entity") is not None
        width = self._width_of(result)
        own: Result[Any] = narrowed(result, width, self._options, alone=alone)
        return own

    def _width_of(self, result: Result[Any]) -> int:
        """Return the number of columns in a row that the program selected."""
        if self.mapper is not None:  # the result's keys omit an unnamed alias
            return len(self._written.column_descriptions)
        return len(result.keys()) - self._added  # text() may have more columns than it declares

    def leave_out(self, documents: Collection[DocumentKey], most: int) -> bool:
        """See :class:`LockTarget`; a statement that also writes is not sent twice."""
        left = None if self.writes else without_documents(self._written, documents, most)
        if left is None:
            return False
        self._written = self._statement = left
        return True

    def _note_returned(self, result: Result[Any], *, reads_beside: bool) -> None:
        """Record the locked objects and the keys of locked rows in the result, which stays readable."""
        adopted = self._adopted
        if adopted.places:
            rows = buffer_rows(result)
            self._headers = _objects_at(adopted.places, rows)
            if reads_beside:
                self._objects = _objects_at(adopted.objects, rows)
        keys = adopted.keys
        if keys:
            width = self._width_of(result)
            whole = [key for key in keys if key.width == width and self._is_same_table(key)]
            self._keys = _keys_of_rows(buffer_rows(result) if whole else (), whole)

    def _is_same_table(self, key: KeyPlaces) -> bool:
        """Return whether the statement read the root's table, even if by another Table object."""
        if key.other is None:
            return True
        session, binds = self.session, self.request.bind_arguments
        own: Any = key.root.local_table
        options = self._options
        return not is_another_table(session, own, key.root, key.other, binds, options)

    def _execute(self, connection: TransactionConnection, plan: LockPlan) -> Result[Any]:
        lock = self.request.lock
        if LockOptions.NoWait not in lock:  # the program's own limit applies
            return self._execute_without_limit(connection)
        with plan.strategy.waits.limited(connection.connection, lock, None):
            return self._execute_without_limit(connection)

    def _execute_without_limit(self, connection: TransactionConnection) -> Result[Any]:
        if self.mapper is None:
            # On the connection that was prepared, whatever get_bind() answers next.
            return self._run(self._statement, bind_arguments={"bind": connection.connection})
        if not self.session.identity_map:
            return self._run(self._statement)
        binds = self.request.bind_arguments
        self._loaded = LoadedHeaders(self.context, self._adopted.returned, binds)
        # Most options exclude no column; unknown ones might.
        written: Any = self._statement
        leaves_out = bool(options_of(written) or options_of(inner_select(written)))
        options = self._loaded.prepare(self._options, leaves_out=leaves_out)
        arguments = {} if options is None else {"execution_options": options}
        return self._run(self._statement, **arguments)

    def expire_unread(self, locks: CompiledLocks) -> None:
        """Expire the session's objects of rows that a statement locks and does not return.

        :param locks: of the SELECT itself, which may be streamed and have returned nothing yet, or of
            a loader that repeats it.
        """
        if _is_streamed(self._options):
            roots = roots_unread(locks.tables)
        else:
            roots = roots_unread(locks.unread, self._adopted.roots)
            self.unread = {*self.unread, *roots}
        for part, owners in expire_unread(self.context, roots).items():
            self.unreadable.setdefault(part, []).extend(owners)

    def before_flush(self) -> None:
        """See :class:`LockTarget`: a flush writes the session's own values."""
        if self._loaded is not None:
            self._loaded.before_flush()

    def record(self, found: Found, request: LockRequest) -> Result[Any]:
        """Restore attributes that were not read again, expire older ones, and record."""
        collisions = [] if self._loaded is None else self._finish(self._loaded)
        refused = {state for state, _ in collisions}
        headers = [header for header in map(instance_state, self._headers) if header not in refused]
        beside = None
        if self._objects:  # attributes that the statement read of rows that it did not lock
            options = {**self._options, "populate_existing": False}  # it overwrites no object
            again = None if self.writes else partial(self._run, execution_options=options)
            beside = RowsBeside(self.context, self._written, again, headers, self._objects)
        for state in headers:
            if state.identity is not None:
                collisions += self._record_header(state, request.lock)
        self._record_keys(request.lock)
        self._expire_same_rows(headers)
        if beside is not None:
            beside.read(request)
        load_again(self.session, self.unreadable)
        unread = changed_rows(self.context, self.unread, request.bind_arguments)
        collisions += [(state, CHANGED.format(repr(name))) for state, name in unread]
        self._note_unsaved(collisions, request)
        result: Result[Any] = found.rows
        return result

    def _note_unsaved(
        self, collisions: Sequence[tuple[InstanceState[Any], str]], request: LockRequest
    ) -> None:
        """Record the error of the first of these changes; each would overwrite another's, and stays pending.

        Its row is locked, but not in ``held_locks``.
        """
        call = self.context.calls.current
        assert call is not None
        call.unsaved = None  # from an earlier try
        if collisions:
            (state, text), *_ = in_session_order(self.session, collisions, itemgetter(0))
            call.unsaved = UnsavedChanges(text)
            key = public_key(state.identity or ())
            database = database_name(self.session, request.bind_arguments)
            add_document(call.unsaved, state.class_, key, request.lock, database)

    def _record_keys(self, lock: LockOptions) -> None:
        had_objects = self._loaded is not None or self.mapper is None
        for root, identity in self._keys if had_objects else ():
            self.context.loaded.of(root).refuse_other_tokens({identity})
        # If several classes map the table, an error names the one whose header the session has.
        known = self.session.identity_map
        for root, identity in sorted(
            self._keys, key=lambda key: key[0].identity_key_from_primary_key(key[1]) not in known
        ):
            if (root.class_, identity) not in self.context.ledger.held:
                self._expire_row(root, identity)
        for root, identity in self._keys:
            if (root, False) not in self._by_index:
                self.context.ledger.record_unread(document_key(root, identity), lock)

    def _expire_row(self, root: Mapper[Any], identity: Identity) -> None:
        """Expire the session's objects of this document.

        :raises UnsavedChanges: it has pending changes, and their rows were not read.
        """
        context, session, request = self.context, self.session, self.request
        try:
            refuse_unsaved(context, root, [identity])
            before = pending_changes(session)
            unreadable = context.loaded.of(root).expire([identity])
            if changed_since(session, before):  # by a listener for "expire"
                refuse_unsaved(context, root, [identity])
        except UnsavedChanges as error:
            database = database_name(session, request.bind_arguments)
            add_document(error, root.class_, public_key(identity), request.lock, database)
            raise
        load_again(session, unreadable)

    def _expire_same_rows(self, headers: Iterable[InstanceState[Any]]) -> None:
        """Expire documents whose table the locked class maps by another Table object.

        Their lock is that of their own class.
        """
        same = {header.mapper: declared_on_same_table(header.mapper) for header in headers}
        for mapper, found in same.items():
            if found:
                keys = [key for key in found if self._is_same_table(key)]
                rows = [
                    header.identity
                    for header in headers
                    if header.mapper is mapper and header.identity
                ]
                for root, identity in _keys_of_rows(rows, keys):
                    if (root.class_, identity) not in self.context.ledger.held:
                        self._expire_row(root, identity)

    def _record_header(self, header: InstanceState[Any], lock: LockOptions) -> list[Collision]:
        """Record a header; or return the changes of its document that would overwrite another's."""
        ledger, collisions = self.context.ledger, list[Collision]()
        document = document_key(header.mapper, header.identity or ())
        if header.identity_token is not None or self._loaded is not None:
            index = self.context.loaded.of(root_of(header.mapper))
            index.refuse_other_tokens({document[1]}, header.identity_token)
        if document not in ledger.held and may_overwrite(self.session):
            collisions = [(header, text) for text in self._changes_of(header)]
        if not collisions and (root_of(header.mapper), True) not in self._by_index:
            ledger.record_unread(document, lock)
        return collisions

    def _changes_of(self, header: InstanceState[Any]) -> Iterator[str]:
        """Yield the collisions of the document's pending changes, except those of the header."""
        pending = self.context.loaded.of(root_of(header.mapper)).pending([header.identity or ()])
        touched = [changed for changed in pending if changed in self._touched]
        for changed in in_session_order(self.session, touched, lambda state: state):
            yield _TOUCHED.format(_label(changed))
        found = [*changed_beside(self.context, header, self.request.bind_arguments)]
        for changed, name in in_session_order(self.session, found, itemgetter(0)):
            yield CHANGED.format(f"{name!r} of {_label(changed)}")

    def _finish(self, loaded: LoadedHeaders) -> list[Collision]:
        """Return the pending changes of headers that would overwrite another's."""
        if _is_streamed(self._options):
            loaded.keep_expired()
        collisions = loaded.finish(self._headers)
        before = pending_changes(self.session)
        _expire_parts(self.context, loaded.read_again)
        self._touched.update(changed_since(self.session, before))
        return [(header, CHANGED.format(repr(name))) for header, name in collisions]

    def undo(self, call: LockCall, error: BaseException) -> None:
        """Restore the objects' attributes; end a transaction that was opened in vain.

        The program handles an error of its own statement.
        """
        if self._loaded is not None:
            self._loaded.put_back()
        refused = isinstance(error, DocLockError) and error is not call.met
        if call.opens and (refused or not self._executed):
            self.context.roll_back_quietly()


def _label(state: InstanceState[Any]) -> str:
    return document_label(state.class_, public_key(state.identity or ()))


def _expire_parts(context: LockContext, headers: Iterable[InstanceState[Any]]) -> None:
    by_root: dict[Mapper[Any], list[Any]] = {}
    for state in headers:
        by_root.setdefault(root_of(state.mapper), []).append(state.identity)
    for root, identities in by_root.items():
        # The headers themselves have just been read under their locks.
        unreadable = context.loaded.of(root).expire(identities, parts_alone=True)
        load_again(context.session(), unreadable)


def _locking(
    statement: Statement, lock: LockOptions, row_lock: LockOptions, strategy: LockStrategy
) -> tuple[Statement, int]:
    """Add the lock to the statement if its ``with_for_update()`` renders none on this database.

    Also return the number of columns that it adds.
    """
    statements, select = strategy.statements, inner_select(statement)
    beside = ReadBeside((), by_key=False)
    if statements.texts.get(row_lock, NO_TEXT).suffix:
        select = add_suffixes(select, row_lock)
    elif has_hints(statements):
        froms = froms_to_hint(select)
        if statements.locked is Locked.WHAT_IS_READ:
            beside = columns_beside(statement, froms, statements)
        select = add_hints(select, froms, row_lock, by_key=beside.by_key)
        select = select.add_columns(*beside.columns)
    else:
        return statement, 0
    check_support(strategy, lock)
    locking: Statement = with_inner_select(statement, select)
    # from_statement() returns the columns that its class reads.
    return locking, len(beside.columns) if select is locking else 0


def _is_streamed(options: Mapping[str, Any]) -> bool:
    return bool(options.get("yield_per") or options.get("stream_results"))


def _objects_at(places: Sequence[int], rows: Iterable[Any]) -> list[Any]:
    return [instance for instance in objects_at(places, rows) if instance is not None]


def _keys_of_rows(
    rows: Iterable[Any], keys: Iterable[KeyPlaces]
) -> Sequence[tuple[Mapper[Any], Identity]]:
    found: dict[tuple[Mapper[Any], Identity], None] = {}
    for row in rows:
        for root, places, *_ in keys:
            identity = tuple(reduce(getitem, place, row) for place in places)
            if None not in identity:
                found[root, identity] = None
    return [*found]
