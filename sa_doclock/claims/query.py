"""ClaimQuery: the statement of claim_each(), the statements derived from it, and rows locked by their keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, bindparam, inspect, or_
from sqlalchemy.orm import LoaderCriteriaOption, Mapper

from ..core.documents import (
    document_key,
    has_subquery,
    header_table,
    index_of_key,
    key_columns,
    own_table,
    parts_of,
    root_of,
    spans_rows,
    unread_columns,
)
from ..core.locking import Found, LockedRows, WaitLimit, acquire, objects_of, single_key, why_hidden
from ..core.session import context_of
from ..core.statements import (
    LOCK_OPTION,
    add_lock,
    key_in,
    lock_by_keys,
    locked_entity_of,
    parameters_by_keys,
    refuse_streaming,
    with_lock,
)
from ..core.transaction import LockPlan, LockRequest, TransactionConnection
from ..dialects import by_keys_hints, parameter_type
from ..dialects.base import is_in_index
from ..errors import LockMisuse, LockNotAvailable, LockNotSupported
from ..keys import DocumentKey, Identity
from ..options import LockOptions
from ..session import LockingSession
from ..sqlalchemy_internals import has_limit, has_offset, only_columns, options_of, order_of

_ONE: Final = "doclock_key_{}"
_MANY: Final = "doclock_keys"


class ClaimQuery:
    """The checked statement of one claim_each() or lease_each(): a select of one mapped class.

    :param name: the function that the program called, for errors.
    """

    def __init__(
        self,
        statement: Select[Any],
        order_by: Any,
        one_per: Any = None,
        *,
        name: str = "claim_each()",
    ) -> None:
        self.name = name
        self.entity = _entity_of(statement, name)
        self.mapper: Mapper[Any] = inspect(self.entity).mapper
        table = own_table(self.mapper)
        if table.info.get("is_view"):
            raise LockNotSupported(
                f"{table.name!r} is a view, which has no rows of its own to lock"
            )
        parts_of(root_of(self.mapper))  # raises if the document is declared wrongly
        self.statement = statement.order_by(None)
        self.order = order_of(statement)
        if order_by is not None:
            if self.order:
                raise ValueError("the statement already has an ORDER BY: leave out order_by=")
            self.order = _columns(order_by, "order_by")
        self.key: list[ColumnElement[Any]] = key_columns(self.entity)
        # For rows outside the header, a locking SELECT shows the state before the wait.
        self.in_one_statement = not _reads_more(statement, self.entity, self.mapper)
        self.has_options = bool(options_of(statement))
        self.one_per = () if one_per is None else _columns(one_per, "one_per")
        keys = only_columns(self.statement, [*self.key, *self.one_per])
        self._keys = keys.order_by(*self.order, *self.key)
        self._locking: dict[tuple[LockOptions, bool, bool], Select[Any]] = {}

    def page(self, size: int, after: Identity | None) -> Select[Any]:
        """Return the SELECT of the keys of up to this many rows.

        :param after: only rows after this one, in the order of the keys.
        """
        keys = self._keys if after is None else self._keys.where(_greater(self.key, after))
        return keys.limit(size)

    def first_of(self, group: Sequence[Any], size: int) -> Select[Any]:
        """Return the SELECT of the keys of the first rows that have these values of ``one_per``."""
        values = (column == value for column, value in zip(self.one_per, group, strict=True))
        return self._keys.where(*values).limit(size)

    def split(self, row: Sequence[Any]) -> tuple[Identity, tuple[Any, ...]]:
        """Return the key in a row of these statements, and the values of ``one_per``."""
        length = len(self.key)
        return tuple(row[:length]), tuple(row[length:])

    def matching(self, identities: Sequence[Identity]) -> Select[Any]:
        """Return the SELECT of the keys among these that match, locked by others or not."""
        return self._keys.order_by(None).where(key_in(self.key, identities))

    def again(self, identities: Sequence[Identity]) -> Select[Any]:
        """Return the SELECT of these rows, if they still match; without a lock."""
        statement = self.statement
        if len(identities) == 1:
            for position, column in enumerate(self.key):
                type_ = parameter_type(column.type)
                statement = statement.where(column == bindparam(_ONE.format(position), type_=type_))
            return statement
        if len(self.key) > 1:
            return statement.where(key_in(self.key, identities))
        type_ = parameter_type(self.key[0].type)
        return statement.where(self.key[0].in_(bindparam(_MANY, expanding=True, type_=type_)))

    def locking(
        self, identities: Sequence[Identity], lock: LockOptions, *, whole_row: bool = False
    ) -> Select[Any]:
        """Return the SELECT that locks these rows, if they match, in the order of their keys."""
        if len(identities) > 1 and len(self.key) > 1:
            return self._locked(identities, lock, whole_row=whole_row)
        cached = lock, len(identities) > 1, whole_row
        if cached not in self._locking:
            self._locking[cached] = self._locked(identities, lock, whole_row=whole_row)
        return self._locking[cached]

    def parameters(self, identities: Sequence[Identity]) -> Mapping[str, Any]:
        """Return the parameters of these statements; {} if the keys are in their text."""
        if len(identities) == 1:
            (identity,) = identities
            return {_ONE.format(position): value for position, value in enumerate(identity)}
        return {_MANY: [key[0] for key in identities]} if len(self.key) == 1 else {}

    def _locked(
        self, identities: Sequence[Identity], lock: LockOptions, *, whole_row: bool
    ) -> Select[Any]:
        statement = self.again(identities)
        if len(identities) > 1:  # a single key is looked up by itself
            for hint, dialect in by_keys_hints(index_of_key(self.mapper)):
                statement = statement.with_hint(header_table(self.entity), hint, dialect)
            statement = statement.order_by(*self.key)
        # Without LOCK_OPTION: under it, the session would not check the conditions again.
        locked = with_lock(statement, lock).execution_options(**{LOCK_OPTION: None})
        if whole_row:
            locked = locked.add_columns(*unread_columns(self.entity))
        return add_lock(locked, self.entity, lock, by_key=True)


def _entity_of(statement: Select[Any], name: str) -> Any:
    if hasattr(statement, "get_execution_options") and locked_entity_of(statement) is not None:
        raise LockMisuse(
            f"{name} adds its own lock, and the statement already has one: leave it out"
        )
    with_lock(statement, LockOptions.None_)  # raises unless it is an ORM select
    described = statement.column_descriptions
    entity = described[0]["entity"]
    if len(described) != 1 or entity is None or described[0]["expr"] is not entity:
        names = ", ".join(str(column["name"]) for column in described)
        raise ValueError(f"{name} needs a select of one mapped class, not of {names}")
    if has_limit(statement) or has_offset(statement):
        raise ValueError(
            "a LIMIT in the statement would also count rows that others hold: use limit= instead"
        )
    with_lock(statement, LockOptions.ForUpdate)  # raises if it cannot be locked
    refuse_streaming(statement.get_execution_options())
    return entity


def _columns(given: Any, name: str) -> tuple[Any, ...]:
    clauses = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    for clause in clauses:
        if isinstance(clause, (str, bytes)) or not (
            isinstance(clause, ColumnElement) or hasattr(clause, "__clause_element__")
        ):
            raise TypeError(f"{name} must be a column or a list of columns, not {clause!r}")
    return clauses


def _reads_more(statement: Select[Any], entity: Any, mapper: Mapper[Any]) -> bool:
    """Return whether the statement reads, or depends on, rows outside the header."""
    where, options = statement.whereclause, options_of(statement)
    return (
        statement.get_final_froms() != [header_table(entity)]
        or (where is not None and has_subquery(where))
        or any(isinstance(option, LoaderCriteriaOption) for option in options)
        or spans_rows(mapper, undeferred=bool(options))
    )


def _greater(columns: Sequence[ColumnElement[Any]], key: Iterable[Any]) -> ColumnElement[bool]:
    """Return the comparison of whole keys; SQL Server has no row values."""
    pairs = list(zip(columns, key, strict=True))
    return or_(
        *(
            and_(*(before == value for before, value in pairs[:position]), column > last)
            for position, (column, last) in enumerate(pairs)
        )
    )


QUEUE: Final = LockOptions.ForUpdate
SKIP: Final = LockOptions.ForUpdate | LockOptions.SkipLocked


def lock_matching(
    session: LockingSession,
    query: ClaimQuery,
    identities: Sequence[Identity],
    lock: LockOptions,
    seconds: float | None,
) -> dict[Identity, Any]:
    """Lock the rows among these that match the statement; in a separate transaction.

    One statement does both if it reads only the header's own row.  Otherwise the rows are locked
    first, in the order of their keys, and a second statement reads them: a single statement would
    show the other rows as of its begin, perhaps before another worker's commit.

    :raises LockFailed: with ``SkipLocked`` only for a deadlock and the like.
    """
    context, mapper = context_of(session), query.mapper
    lock, seconds = context.options.resolve(lock, seconds)  # the default lock, if it waits
    request = LockRequest(
        mapper.class_,
        single_key(identities),
        lock,
        seconds,
        mapper,
        identities,
        bind_arguments={"mapper": mapper},
    )
    target = _MatchingRows(context, request, query)
    found = acquire(target)
    if target.hides_rows:
        _refuse_hidden(session, query, [key for key in identities if key not in found])
    return found


def _refuse_hidden(session: LockingSession, query: ClaimQuery, missing: Sequence[Identity]) -> None:
    """Try to lock each missing row that still matches, then undo it by a savepoint.

    :raises LockNotSupported: a row can be read but not locked.
    """
    matching = session.execute(query.matching(missing))
    for key in [query.split(row)[0] for row in matching]:
        with suppress(LockNotAvailable), session.begin_nested() as savepoint:
            session.get_entity(query.mapper.class_, key, QUEUE | LockOptions.NoWait)
            savepoint.rollback()


class _MatchingRows(LockedRows[dict[Identity, Any]]):
    hides_rows = False
    """Rows were not found that may be readable."""

    def __init__(self, context: Any, request: LockRequest, query: ClaimQuery) -> None:
        super().__init__(context, request)
        self._query = query
        self._left_out: set[Identity] = set()

    def leave_out(self, documents: Collection[DocumentKey], most: int) -> bool:
        self._left_out.update(identity for _, identity in documents)
        return not self._left_out.issuperset(self.request.keys)

    def send(
        self, connection: TransactionConnection, plan: LockPlan, request: LockRequest
    ) -> Found:
        self._keys = request.keys
        found = self.send_select(connection, plan, request)
        if len(found.rows) < len(request.keys):
            self.hides_rows = why_hidden(connection, plan) is not None
        return found

    def locking(self, plan: LockPlan, lock: LockOptions, *, whole_row: bool) -> Select[Any] | None:
        query = self._query
        # An index may cover the conditions too; it has the key after its own columns.
        unlocked = whole_row and (query.has_options or is_in_index(own_table(self.mapper), ()))
        if unlocked or not query.in_one_statement:
            return None
        return query.locking(self._keys, lock, whole_row=whole_row)

    def under_lock(self, lock: LockOptions) -> Select[Any]:
        return self._query.again(self._keys)

    def read(self, statement: Select[Any]) -> Found:
        parameters = self._query.parameters(self._keys)
        return Found(objects_of(self.session, statement, parameters, (), self.binds))

    def lock_and_read(self, limit: WaitLimit, *, whole_row: bool) -> Found:
        root = root_of(self.mapper)
        locking = partial(lock_by_keys, root, keys=self._keys, whole_row=whole_row)
        self._keys = self.lock_keys(limit, locking, parameters_by_keys(self._keys))
        return self.read(self._query.again(self._keys)) if self._keys else Found(())

    def record(self, found: Found, request: LockRequest) -> dict[Identity, Any]:
        rows = {tuple(inspect(row).identity): row for row in found.rows}
        for identity in self._left_out:
            rows.pop(identity, None)
        for identity in rows:
            document = document_key(self._query.mapper, identity)
            self.context.ledger.record(document, request.lock)
        return rows
