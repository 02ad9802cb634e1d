"""CheckOuts: the locks of one session, which ask whether somebody has the document checked out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import ref

from sqlalchemy import Connection, Engine, Table, inspect, update
from sqlalchemy.orm import Mapper, Session

from ...checkout_info import Checkout
from ...dialects import product_of, strategy_for
from ...dialects.base import Read
from ...documents import document_key, has_checkouts, identity_of, root_of
from ...errors import DocLockError, LockMisuse, WrongIsolation
from ...lock_info import DocumentKey, LockedName, public_key
from ...options import LockOptions, base_of
from ...transaction import (
    LedgerMark,
    Limit,
    LockCall,
    LockPlan,
    LockRequest,
    SessionPart,
    Take,
    TransactionConnection,
    TransactionState,
    add_document,
)
from .conditions import FREE, Condition, condition_of
from .keys import document_name
from .rows import NO_ROW, CheckoutRow, CheckoutRows

_NO_TABLE = (
    "this session knows no check-outs: make it with LockingSession(checkouts=table), the table by "
    "checkout_table(metadata)"
)


class NoCheckOuts(SessionPart):
    """The part of a session that is made without a table: it refuses ``checkout=``."""

    def check_request(self, request: LockRequest) -> None:
        """See :class:`SessionPart`.  :raises LockMisuse: a check-out was given."""
        if "checkout" in request.given:
            raise LockMisuse(_NO_TABLE)


class CheckOuts(SessionPart):
    """The check-outs of the documents that one session locks.

    :param pipelined: what is asked under a lock travels with it, in a pipeline of the session.
    :ivar table: of the check-outs.
    """

    def __init__(self, state: TransactionState, table: Table, *, pipelined: bool) -> None:
        self.table = table
        self._pipelined = pipelined
        self._sent: tuple[DocumentKey, CheckoutRow] | None = None
        self.session = state.session
        self._state = ref(state)
        self._binds: dict[Mapper[Any], Engine | Connection] = {}
        # As they were when the locks were granted: as long as these are held, nobody else can
        # change the owner.
        self._rows: dict[DocumentKey, CheckoutRow] = {}
        self._adopting: tuple[TransactionConnection, LedgerMark] | None = None

    @property
    def state(self) -> TransactionState:
        """The state of the session that uses this part."""
        state = self._state()
        assert state is not None  # it is used
        return state

    # The hooks, in the order of SessionPart.

    def check_request(self, request: LockRequest) -> None:
        """See :class:`SessionPart`: rows of this class can be checked out, and by such a lock."""
        given = request.given.get("checkout")
        if given is None:
            return
        condition_of(given)
        check_class(_mapper_of(request))
        if base_of(request.lock) is not LockOptions.ForUpdate:
            raise ValueError("checkout= goes with ForUpdate: no other lock asks for a check-out")
        if isinstance(given, Checkout):
            _check_document(request, given)

    def around_take(self, take: Take) -> Take:
        """See :class:`SessionPart`: ask, under the lock, who has the document."""

        def take_if_allowed(call: LockCall, request: LockRequest, target: Any) -> Any:
            ledger = self.state.ledger
            mark = ledger.mark()
            self._sent = None
            try:
                result = take(call, request, target)
                self._check(ledger.new or (), _condition(request))
            except DocLockError:
                # Refused is not locked: the guard lets nobody write, and the next lock asks again.
                ledger.roll_back_to(mark)
                raise
            return result

        return take_if_allowed

    def bound(self, mapper: Mapper[Any] | None, bind: Engine | Connection) -> None:
        """See :class:`SessionPart`: the check-outs are where the documents are."""
        if mapper is not None:
            self._binds[root_of(mapper)] = bind

    def around_limit(self, limit: Limit) -> Limit:
        """See :class:`SessionPart`: in the block of a pipeline, take the answer that came along."""
        if not self._pipelined:
            return limit

        def limit_and_ask(
            connection: TransactionConnection, plan: LockPlan, request: LockRequest
        ) -> AbstractContextManager[LockRequest]:
            block = limit(connection, plan, request)
            return self._asking(block, request) if _is_of_one(request) else block

        return limit_and_ask

    @contextmanager
    def _asking(
        self, block: AbstractContextManager[LockRequest], request: LockRequest
    ) -> Iterator[LockRequest]:
        with block as limited:
            yield limited
            root, key = root_of(_mapper_of(request)), request.keys[0]
            rows = CheckoutRows(self.table, self.connection(root))
            timed = _condition(request).gives
            row = rows.read_one(document_name(rows.connection, root, key), timed=timed)
            self._sent = (root.class_, key), row

    def reads_after(self, request: LockRequest) -> Iterator[Read]:
        """See :class:`SessionPart`: who has the document."""
        if _is_of_one(request):
            root = root_of(_mapper_of(request))
            rows = CheckoutRows(self.table, self.connection(root))
            name = document_name(rows.connection, root, request.keys[0])
            yield rows.select_one(name, timed=_condition(request).gives)

    def check_found(self, request: LockRequest, found: object) -> None:
        """See :class:`SessionPart`: a document that may be held already is that of the caller."""
        given = request.given.get("checkout")
        if given is not None:
            state: Any = inspect(found)
            document = document_key(state.mapper, state.identity)
            self._check([document], condition_of(given), again=True)

    def granted(self, documents: Sequence[DocumentKey | LockedName], lock: LockOptions) -> None:
        """See :class:`SessionPart`: an adopted lock asks now, as no call has taken it."""
        adopting, self._adopting = self._adopting, None
        if adopting is None:
            return
        connection, mark = adopting
        try:
            self._check(documents, FREE, connection)
        except DocLockError:
            self.state.ledger.roll_back_to(mark)
            raise

    def before_adopted(self, connection: TransactionConnection, lock: LockOptions) -> None:
        """See :class:`SessionPart`."""
        self._adopting = connection, self.state.ledger.mark()

    def locks_lost(self) -> None:
        """See :class:`SessionPart`."""
        self.read_again()

    def mark(self) -> None:
        """See :class:`SessionPart`: what a rollback undoes is read again."""

    def roll_back_to(self, mark: object) -> None:
        """See :class:`SessionPart`."""
        self.read_again()

    def ended(self, *, committed: bool) -> None:
        """See :class:`SessionPart`."""
        self.read_again()
        self._binds.clear()
        self._adopting = None

    # What the methods of the session need.

    def read_again(self) -> None:
        """Forget what was read: the times are old, or the session itself changes the rows."""
        self._rows.clear()
        self._sent = None

    def row(self, document: DocumentKey) -> CheckoutRow:
        """Return the row of a document that is held, as it was under its lock."""
        return self._rows[document]

    def connection(self, root: Mapper[Any], *, writes: bool = False) -> Connection:
        """Return the connection to the database of these documents; it may begin a transaction.

        :param writes: a session that routes reads to replicas is asked for the primary.
        """
        session = self.session()
        bind = self._binds.get(root)
        if bind is not None:
            return Session.connection(session, {"bind": bind})
        arguments = {"mapper": root, "clause": update(self.table)} if writes else {"mapper": root}
        return Session.connection(session, arguments)

    def _check(
        self,
        documents: Sequence[DocumentKey | LockedName],
        condition: Condition,
        adopted_by: TransactionConnection | None = None,
        *,
        again: bool = False,
    ) -> None:
        """Refuse the lock if one of these documents is checked out in another way.

        :param adopted_by: the connection of an adopted lock.
        :param again: compare also what the session has compared before.
        :raises CheckedOut, CheckoutLost: the condition does not hold.
        :raises WrongIsolation: the transaction cannot see what was committed last.
        """
        asked = [one for one in map(self._asked, documents) if one is not None]
        new = [one for one in asked if one not in self._rows]
        for document, row in self._read(new, adopted_by, timed=condition.gives):
            self._rows[document] = row
        for document in asked if again else new:
            row = self._rows[document]
            if condition.refuses(row):
                self.read_again()
                raise self._refusal(document, row, condition)

    def _asked(self, document: DocumentKey | LockedName) -> DocumentKey | None:
        """Return a document that is asked for; None for any other lock."""
        entity, identity = document
        if entity is None or not has_checkouts(inspect(entity)):
            return None
        return (entity, identity) if self.state.ledger.is_writable((entity, identity)) else None

    def _read(
        self,
        documents: Sequence[Any],
        adopted_by: TransactionConnection | None,
        *,
        timed: bool,
    ) -> Sequence[tuple[DocumentKey, CheckoutRow]]:
        """Return the rows of these documents, by one statement of each kind of document."""
        if self._sent is not None and [*documents] == [self._sent[0]]:
            return [self._sent]
        by_root: dict[Mapper[Any], list[DocumentKey]] = {}
        for document in documents:
            by_root.setdefault(inspect(document[0]), []).append(document)
        found: list[tuple[DocumentKey, CheckoutRow]] = []
        for root, some in by_root.items():
            if adopted_by is None:
                rows = CheckoutRows(self.table, self.connection(root))
            else:
                latest = self._must_read_latest(adopted_by)
                rows = CheckoutRows(self.table, adopted_by.connection, latest=latest)
            found += _rows_of(rows, root, some, timed=timed)
        return found

    def _must_read_latest(self, adopted_by: TransactionConnection) -> bool:
        """Return whether only a locking read shows what was committed last.

        :raises WrongIsolation: no read does, at this isolation level.
        """
        strategy = strategy_for(adopted_by.connection)
        level = self.state.connections.current_level(adopted_by)
        levels = strategy.levels_for(LockOptions.ForUpdate)
        kept = strategy.kept_levels.get(LockOptions.ForUpdate, ())
        if not levels or level in levels or level in kept:
            return False
        if strategy.locking_read_is_latest:
            return True
        raise WrongIsolation(
            f"the transaction is open at {level}, where a check-out that was committed after its "
            f"begin cannot be seen: lock in a transaction at {levels[0]}"
        )

    def _refusal(
        self, document: DocumentKey, row: CheckoutRow, condition: Condition
    ) -> DocLockError:
        entity, identity = document
        root: Mapper[Any] = inspect(entity)
        checkout = None if row.until is None else row.as_checkout(root, identity)
        error = condition.error(row, checkout)
        database = product_of(self.connection(root).dialect)
        add_document(error, entity, public_key(identity), LockOptions.ForUpdate, database)
        return error


def _rows_of(
    rows: CheckoutRows, root: Mapper[Any], documents: Sequence[DocumentKey], *, timed: bool
) -> Sequence[tuple[DocumentKey, CheckoutRow]]:
    """Return the rows of these documents of one kind; of several, only of those that have one."""
    names = {one: document_name(rows.connection, root, one[1]) for one in documents}
    if len(documents) == 1:
        (document,) = documents
        return [(document, rows.read_one(names[document], timed=timed))]
    found = rows.read(name.id for name in names.values())
    return [(one, found.get(name.id, NO_ROW)) for one, name in names.items()]


def _mapper_of(request: LockRequest) -> Mapper[Any]:
    assert request.mapper is not None
    return request.mapper


def _condition(request: LockRequest) -> Condition:
    return condition_of(request.given.get("checkout"))


def _is_of_one(request: LockRequest) -> bool:
    """Return whether it locks one document that can be checked out, by its key."""
    return (
        len(request.keys) == 1
        and base_of(request.lock) is LockOptions.ForUpdate
        and has_checkouts(root_of(_mapper_of(request)))
    )


def checkouts_of(state: TransactionState) -> CheckOuts:
    """Return the part of a session.  :raises LockMisuse: it was made without a table."""
    part = state.part(CheckOuts)
    if part is None:
        raise LockMisuse(_NO_TABLE)
    return part


def check_class(mapper: Mapper[Any]) -> None:
    """:raises LockMisuse: documents of this class are not declared with ``checkout=True``."""
    if not has_checkouts(root_of(mapper)):
        name = mapper.class_.__name__
        raise LockMisuse(
            f"a {name} cannot be checked out; decorate the class with @document(checkout=True)"
        )


def _check_document(request: LockRequest, checkout: Checkout) -> None:
    """:raises ValueError: the check-out is that of another document."""
    root = root_of(_mapper_of(request))
    same = root_of(inspect(checkout.entity)) is root
    if same and len(request.keys) == 1:
        same = identity_of(root, checkout.ident) == request.keys[0]
    if not same:
        raise ValueError(f"{checkout!r} is a check-out of another document than {request.document}")
