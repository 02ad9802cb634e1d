"""CheckOuts: makes the locks of one session ask whether the document is checked out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, Table, inspect
from sqlalchemy.orm import Mapper

from ...checkout_info import NO_TABLE, NOBODY, Checkout
from ...core.documents import declares, document_key, identity_of, root_of
from ...core.transaction import (
    Limit,
    LockCall,
    LockContext,
    LockPlan,
    LockRequest,
    Noting,
    SessionPart,
    Take,
    TransactionConnection,
    add_document,
)
from ...dialects import product_of, strategy_for
from ...dialects.base import Read
from ...errors import DocLockError, LockMisuse
from ...events import ReleasedLock
from ...guard import is_atomic
from ...keys import DocumentKey, LockedName, document_label, public_key
from ...options import LockOptions, base_of
from .atomic import compared_with_checkouts
from .conditions import FREE, CheckoutCondition, condition_of
from .reader import CheckoutReader
from .table_rows import CheckoutRow


class _ReadRows:
    """The check-out rows that were read in one transaction.

    :ivar held: the rows of locked documents, as of the lock: no other transaction can change their owner.
    :ivar ahead: the rows of a lock that is being taken.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.held: dict[DocumentKey, CheckoutRow] = {}
        self.ahead: dict[DocumentKey, CheckoutRow] = {}


class CheckOuts(SessionPart):
    """The check-outs of the documents that one session locks.

    :param pipelined: in the session's pipeline, questions are sent with their lock.
    :ivar reader: reads the rows of the table.
    """

    def __init__(self, state: LockContext, table: Table, *, pipelined: bool) -> None:
        self.reader = CheckoutReader(state, table)
        self._pipelined = pipelined

    @property
    def _read_rows(self) -> _ReadRows:
        return self.reader.state.transaction.memory(self, _ReadRows)

    # The hooks, in the order of SessionPart.

    def check_request(self, request: LockRequest) -> None:
        """See :class:`CheckoutCondition`: rows of this class can be checked out, and by such a lock."""
        given = request.given.get("checkout")
        if given is None or given is NOBODY:
            return
        condition_of(given)
        check_class(_mapper_of(request))
        if base_of(request.lock) is not LockOptions.ForUpdate:
            raise ValueError("checkout= needs ForUpdate: no other lock looks at check-outs")
        if isinstance(given, Checkout):
            _check_document(request, given)

    def around_take(self, take: Take) -> Take:
        """See :class:`SessionPart`: ask, under the lock, who has the document."""

        def take_if_allowed(call: LockCall, request: LockRequest, target: Any) -> Any:
            state, condition = self.reader.state, _condition(request)
            mark = state.ledger.mark()
            left_out: set[DocumentKey] = set()
            try:
                while True:
                    self._read_rows.ahead = {}
                    result = take(call, request, target)
                    refused = self._refused(call.new, condition)
                    if not refused:
                        return result
                    skips = LockOptions.SkipLocked in request.lock
                    if not (skips and self._leave_out(target, [*refused], left_out)):
                        raise self._refusal(*next(iter(refused.items())), condition)
                    state.transaction.give_up(mark, reported=False)
                    call.new.clear()
            except DocLockError:
                # Unlocked for the ledger: the guard refuses writes, and the next lock asks again.
                state.transaction.give_up(mark, reported=False)
                raise

        return take_if_allowed

    def bound(
        self, request: LockRequest, roots: Collection[Mapper[Any]], bind: Engine | Connection
    ) -> None:
        """See :class:`SessionPart`: a document's check-outs are in its database."""
        self.reader.binds.update(dict.fromkeys(roots, bind))

    def around_limit(self, limit: Limit) -> Limit:
        """See :class:`SessionPart`: in a pipeline, take the answer that came with the lock."""
        if not self._pipelined:
            return limit

        @contextmanager
        def limit_and_ask(
            connection: TransactionConnection, plan: LockPlan, request: LockRequest
        ) -> Iterator[LockRequest | None]:
            with limit(connection, plan, request) as limited:
                yield limited
                if _is_of_one(request):
                    root, key = root_of(_mapper_of(request)), request.keys[0]
                    row = self.reader.read_one(root, key, timed=_condition(request).gives)
                    self._read_rows.ahead[root.class_, key] = row

        return limit_and_ask

    def reads_along(self, request: LockRequest) -> Iterator[Read]:
        """Yield the read that a pipeline sends with this lock: the check-out."""
        if _is_of_one(request):
            root, key = root_of(_mapper_of(request)), request.keys[0]
            yield self.reader.select(root, key, timed=_condition(request).gives)

    def around_write(self, statement: Any, parameters: Any, how: Mapping[str, Any]) -> Noting:
        """See :class:`SessionPart`: atomic_update() takes no lock that could compare check-outs."""
        if statement is not None and is_atomic(statement):
            return compared_with_checkouts(self, statement, parameters, how)
        return super().around_write(statement, parameters, how)

    def check_found(self, request: LockRequest, found: object) -> None:
        """See :class:`CheckoutCondition`: a document that is locked already must be the caller's."""
        given = request.given.get("checkout")
        if given is not None and declares(inspect(found).mapper, "checkout"):
            state: Any = inspect(found)
            document, condition = document_key(state.mapper, state.identity), condition_of(given)
            for refused, row in self._refused([document], condition, again=True).items():
                raise self._refusal(refused, row, condition)

    def released(self, released: Sequence[ReleasedLock], outcome: str) -> None:
        """See :class:`SessionPart`."""
        self.read_again()

    def roll_back_to(self, moment: int) -> None:
        """See :class:`SessionPart`: rows that a rollback undoes are read again."""
        self.read_again()

    def read_again(self) -> None:
        """Forget the rows read: their times are old, or the session itself changes them."""
        self._read_rows.forget()

    def row(self, document: DocumentKey) -> CheckoutRow:
        """Return the row of a locked document, as of its lock."""
        return self._read_rows.held[document]

    def _refused(
        self,
        documents: Sequence[DocumentKey | LockedName],
        condition: CheckoutCondition,
        *,
        again: bool = False,
    ) -> Mapping[DocumentKey, CheckoutRow]:
        """Return the documents that the condition refuses, with their rows.

        :param again: compare documents again that the session has compared before.
        :raises WrongIsolation: the transaction cannot see the latest commit.
        """
        asked, held = [*filter(None, map(self._asked, documents))], self._read_rows.held
        new = [key for key in asked if key not in held]
        for entity in dict.fromkeys(entity for entity, _ in new):
            self.reader.check_place(inspect(entity), self.reader.state.ledger.place_of(entity))
        held |= self._read(new, timed=condition.gives)
        rows = {key: held[key] for key in (asked if again else new)}
        refused = [key for key, row in rows.items() if condition.refuses(row)]
        if refused:
            self.read_again()
        return {key: rows[key] for key in refused}

    def refuse_taken(self, documents: Sequence[DocumentKey]) -> None:
        """:raises CheckedOut: somebody has one of these documents, whose rows are locked."""
        for document, row in self.reader.read(documents, timed=False).items():
            if FREE.refuses(row):
                raise self._refusal(document, row, FREE)

    def _leave_out(
        self, target: Any, refused: Sequence[DocumentKey], left_out: set[DocumentKey]
    ) -> bool:
        """Exclude these documents from the target's query; return False if it cannot.

        :param left_out: the documents that are excluded already.
        """
        if not left_out.isdisjoint(refused):
            return False  # the database compares keys in another way than Python
        roots = [inspect(entity) for entity in dict.fromkeys(entity for entity, _ in refused)]
        width = max(len(root.primary_key) for root in roots)
        statements = strategy_for(self.reader.connection(roots[0])).statements
        most = statements.max_parameters.left_out - len(left_out) * width
        more = dict.fromkeys(refused)
        if left_out:  # LIMIT brought others in their place: exclude every known one
            is_held = self.reader.state.ledger.may_write
            for root in roots:
                known = self.reader.find_all_taken(root, most // width - len(more))
                more |= dict.fromkeys(key for key in known if not is_held(key))
        left_out.update(more)
        return bool(target.leave_out([*more], most))

    def _asked(self, document: DocumentKey | LockedName) -> DocumentKey | None:
        """Return the key of a document with check-outs that the lock may write, or None."""
        entity, identity = document
        if entity is None or not declares(inspect(entity), "checkout"):
            return None
        writable = self.reader.state.ledger.may_write((entity, identity))
        return (entity, identity) if writable else None

    def _read(
        self, documents: Sequence[DocumentKey], *, timed: bool
    ) -> Mapping[DocumentKey, CheckoutRow]:
        """Return the documents' rows; they may have come with the lock."""
        ahead = self._read_rows.ahead
        if ahead.keys() == {*documents}:
            return dict(ahead)
        return self.reader.read(documents, timed=timed)

    def _refusal(
        self, document: DocumentKey, row: CheckoutRow, condition: CheckoutCondition
    ) -> DocLockError:
        entity, identity = document
        root: Mapper[Any] = inspect(entity)
        checkout = None if row.until is None else row.as_checkout(root, identity)
        error = condition.error(row, checkout)
        database = product_of(self.reader.connection(root).dialect)
        add_document(error, entity, public_key(identity), LockOptions.ForUpdate, database)
        return error


def _mapper_of(request: LockRequest) -> Mapper[Any]:
    assert request.mapper is not None
    return request.mapper


def _condition(request: LockRequest) -> CheckoutCondition:
    return condition_of(request.given.get("checkout"))


def _is_of_one(request: LockRequest) -> bool:
    return (
        len(request.keys) == 1
        and base_of(request.lock) is LockOptions.ForUpdate
        and declares(_mapper_of(request), "checkout")
    )


def checkouts_of(state: LockContext) -> CheckOuts:
    """Return the part of a session.  :raises LockMisuse: it was made without a table."""
    part = state.parts.find(CheckOuts)
    if part is None:
        raise LockMisuse(NO_TABLE)
    return part


def check_class(mapper: Mapper[Any]) -> None:
    """:raises LockMisuse: documents of this class are not declared with ``checkout=True``."""
    if not declares(mapper, "checkout"):
        name = mapper.class_.__name__
        raise LockMisuse(
            f"a {name} cannot be checked out; decorate the class with @document(checkout=True)"
        )


def _check_document(request: LockRequest, checkout: Checkout) -> None:
    """:raises ValueError: the check-out belongs to another document."""
    root = root_of(_mapper_of(request))
    same = root_of(inspect(checkout.entity)) is root
    if same and len(request.keys) == 1:
        same = identity_of(root, checkout.ident) == request.keys[0]
    if not same:
        label = document_label(checkout.entity, checkout.ident)
        raise ValueError(
            f"checkout= is a check-out of {label}, but the call asks for {request.document}"
        )
