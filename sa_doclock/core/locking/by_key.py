"""The locks of documents by their primary keys: the targets of get_entity() and get_entities()."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.attributes import instance_state

from ...dialects.base import parameters_for_keys
from ...keys import DocumentKey, Identity, key_text, public_key
from ...options import LockOptions, is_row_lock
from ...sqlalchemy_internals import states_to_flush
from ..documents import (
    identity_of,
    key_order,
    lockable_root,
    mapper_cache,
    parts_of,
    root_of,
    row_order,
    spans_rows,
)
from ..loading import load_again
from ..statements import (
    chunks,
    in_order,
    key_names,
    lock_by_key,
    lock_by_keys,
    parameters_by_key,
    parameters_by_keys,
    refuse_unlockable_options,
    relationships_with_options,
    select_by_key,
    select_by_keys,
)
from ..transaction import LockPlan, LockRequest, TransactionConnection
from .acquire import Found
from .locked_rows import LockedRows, objects_of
from .read_by_key import (
    find_again,
    keys_of,
    read_held,
    read_held_one,
    read_many,
    refuse_several_rows,
    several_rows,
)
from .unsaved_changes import refuse_unsaved
from .wait_limit import WaitLimit

T = TypeVar("T")


def identities_of(mapper: Mapper[Any], idents: Iterable[Any]) -> list[Identity]:
    """Return the primary keys, each once, in ascending order."""
    if isinstance(idents, (str, bytes, Mapping)) or not isinstance(idents, Iterable):
        raise TypeError(f"idents must be an iterable of primary keys, not {key_text(idents)}")
    identities = dict.fromkeys(identity_of(mapper, ident) for ident in idents)
    try:
        return sorted(identities, key=key_order(mapper))
    except (TypeError, LookupError) as error:
        raise ValueError(
            "the keys cannot be put in order: some are of different types, or NULL in part, or "
            "their type has no order; give a type of your own a sort_key_function"
        ) from error


def single_key(identities: Sequence[Identity]) -> Any:
    """Return the key of the only document, for an error; None if there are several."""
    return public_key(identities[0]) if len(identities) == 1 else None


class _RowsByKey(LockedRows[T]):
    chosen: frozenset[Any] = frozenset()  # the relationships for which the caller gave an option
    sent: Sequence[Identity] = ()  # the keys of the current statement, if it does not have all
    recheck = False  # check pending changes again, under the lock

    def check(self, request: LockRequest) -> None:
        session = self.session
        self.root = root = lockable_root(self.mapper)
        parts_of(root)  # raises if the document is declared wrongly
        if request.options:
            refuse_unlockable_options(request.options)
            self.chosen = relationships_with_options(request.options)
        if self.context.options.ranks and is_row_lock(request.lock):
            self.context.ledger.check_order(root)
        if session.identity_map or self.context.added:  # usually false at the first lock
            self.recheck = refuse_unsaved(self.context, root, request.keys)

    def expire(self, request: LockRequest) -> None:
        keys = frozenset(self.sent or request.keys)
        if refuse_unsaved(self.context, self.root, keys):
            self.recheck = True
        self.expire_loaded(self.root, keys)
        # A listener for "expire" may have changed the document, with values from before the lock.
        if any(states_to_flush(self.session)):
            self.recheck |= refuse_unsaved(self.context, self.root, keys)

    def before_load(self) -> None:
        """Refuse changes by a listener of the engine, like those by a listener for "expire"."""
        if any(states_to_flush(self.session)):
            keys = frozenset(self.sent or self.request.keys)
            self.recheck |= refuse_unsaved(self.context, self.root, keys)

    def forget_vanished(self, key: Identity) -> None:
        header = self.session.identity_map.get(self.mapper.identity_key_from_primary_key(key))
        if header is not None:
            self.session.expire(header)
            with self.session.no_autoflush:
                self.session.get(self.mapper.class_, key)

    def give_up_others(
        self, locked: Iterable[Identity], found: Collection[Identity], request: LockRequest
    ) -> None:
        """Release locked rows of the root's table that belong to another class.

        Only the end of the transaction releases them; if that is not ours to end, the ledger
        records them.

        :param locked: the keys of the rows that were locked before the entity was read.
        """
        known = frozenset(found)
        others = [key for key in locked if key not in known]
        call = self.context.calls.current
        if others and call is not None and call.opens and not found:
            self.context.roll_back_quietly()
            return
        for identity in others:
            self.context.ledger.record((self.root.class_, identity), request.lock)

    def record_rows(self, actual: Collection[Identity], request: LockRequest) -> None:
        """Record the locked rows by the keys in the rows.

        Such a key may differ from the requested one: 1 for "1".  The session may have loaded that
        row and not have expired it before the lock.
        """
        ledger, root = self.context.ledger, self.root.class_
        unexpected = set(actual).difference(request.keys)
        if unexpected:  # covers() raises for an upgrade
            refuse_several_rows(self.session, self.root, request.keys, actual)
            unexpected = {key for key in unexpected if not ledger.covers((root, key), request.lock)}
        if self.recheck or unexpected:
            affected = {*request.keys, *unexpected}
            refuse_unsaved(self.context, self.root, affected, ask=True)
        if unexpected:
            unreadable = self.context.loaded.of(self.root).expire(unexpected)
            read_many(self.context, self.mapper, in_order(self.root, unexpected), request)
            load_again(self.session, unreadable)
        for identity in actual:
            ledger.record((root, identity), request.lock)


@mapper_cache
def _in_one_statement(mapper: Mapper[Any], *, whole_row: bool, has_options: bool) -> bool:
    """Return whether one SELECT suffices: options may leave columns out, or add subqueries."""
    return not (whole_row and has_options) and not spans_rows(mapper, undeferred=has_options)


class OneByKey(_RowsByKey["T | None"], Generic[T]):
    """The row that get_entity() asks for."""

    def not_held(self) -> LockRequest | None:
        key, ledger = (root_of(self.mapper).class_, self.request.keys[0]), self.context.ledger
        held = key in ledger.held and ledger.covers(key, self.request.lock)
        return None if held else self.request

    def read_held(self) -> T | None:
        found: T | None = read_held_one(self.context, self.request)
        if found is not None and self.request.given:
            self._check_found(found)
        return found

    def _check_found(self, found: T) -> None:
        for condition in self.context.parts.conditions:
            condition.check_found(self.request, found)

    def send(
        self, connection: TransactionConnection, plan: LockPlan, request: LockRequest
    ) -> Found:
        found = self.send_select(connection, plan, request)
        if not found.rows and plan.strategy.statements.retries_missing_rows:
            found = self.send_select(connection, plan, request)
        if not found.rows:
            send, keys = partial(self.send_select, connection, plan, request), request.keys
            found = find_again(self.session, connection, plan, self.mapper, keys, send) or found
        if len(found.rows) > 1:
            raise several_rows(request.keys[0], keys_of(self.mapper, found.rows))
        if self.unreadable:
            load_again(self.session, self.unreadable)
        return found

    def locking(self, plan: LockPlan, lock: LockOptions, *, whole_row: bool) -> Select[Any] | None:
        options = bool(self.request.options)
        if not _in_one_statement(self.mapper, whole_row=whole_row, has_options=options):
            return None
        return select_by_key(self.mapper, lock, self.chosen, whole_row=whole_row)

    def under_lock(self, lock: LockOptions) -> Select[Any]:
        return select_by_key(self.mapper, lock, self.chosen)

    def read(self, statement: Select[Any]) -> Found:
        # Not parameters_by_key(): every lock of one document would pay for the call.
        parameters = dict(zip(key_names(self.mapper), self.request.keys[0], strict=True))
        options = self.request.options
        session, check = self.session, self.before_load
        return Found(objects_of(session, statement, parameters, options, self.binds, check))

    def lock_and_read(self, limit: WaitLimit, *, whole_row: bool) -> Found:
        locking = partial(lock_by_key, self.mapper, whole_row=whole_row)
        parameters = parameters_by_key(self.mapper, self.request.keys[0])
        locked = self.lock_keys(limit, locking, parameters)
        if not locked:
            return Found([])
        return self.read(select_by_key(self.mapper, LockOptions.None_))._replace(keys=locked)

    def record(self, found: Found, request: LockRequest) -> T | None:
        if not found.rows:
            self.forget_vanished(request.keys[0])
            self.give_up_others(found.keys, (), request)
            return None
        row: T = found.rows[0]
        state = instance_state(row)
        assert state.key is not None  # it is loaded
        key = state.key[1]
        if self.recheck or key not in request.keys:
            self.record_rows((key,), request)
        else:
            self.context.ledger.record((self.root.class_, key), request.lock)
        if request.given:
            self._check_found(row)
        return row


class ManyByKey(_RowsByKey["list[T]"], Generic[T]):
    """The rows that get_entities() asks for, in ascending key order."""

    _left_out: frozenset[Identity] = frozenset()

    def leave_out(self, documents: Collection[DocumentKey], most: int) -> bool:
        # The keys in the rows, which may differ from the requested ones.
        self._left_out |= {identity for _, identity in documents}
        return True

    def not_held(self) -> LockRequest | None:
        covers, request, root = self.context.ledger.covers, self.request, root_of(self.mapper)
        others = [key for key in request.keys if not covers((root.class_, key), request.lock)]
        return request._replace(keys=others) if others else None

    def read_held(self) -> list[T]:
        return self._with_held([], self.request.keys)

    def _with_held(self, found: list[T], held: Collection[Identity]) -> list[T]:
        if not held and key_order(self.mapper) is None:
            return found
        found = found + read_held(self.context, self.request, held)
        return sorted(_distinct(found), key=row_order(self.mapper))

    def send(
        self, connection: TransactionConnection, plan: LockPlan, request: LockRequest
    ) -> Found:
        found = self._send_all(connection, plan, request, request.keys)
        if (
            plan.strategy.statements.retries_missing_rows
            and LockOptions.SkipLocked not in request.lock
        ):
            missing = self._missing(found.rows, request)
            if missing:
                found = self._with(found, self._send_all(connection, plan, request, missing))
                missing = self._missing(found.rows, request)
                send = partial(self._send_all, connection, plan, request, missing)
                more = find_again(self.session, connection, plan, self.mapper, missing, send)
                found = found if more is None else self._with(found, more)
        if self.unreadable:
            load_again(self.session, self.unreadable)
        return found

    def _with(self, found: Found, more: Found) -> Found:
        rows = sorted(_distinct(found.rows + more.rows), key=row_order(self.mapper))
        return Found(rows, [*found.keys, *more.keys])

    def _send_all(
        self,
        connection: TransactionConnection,
        plan: LockPlan,
        request: LockRequest,
        keys: Sequence[Identity],
    ) -> Found:
        limit = parameters_for_keys(plan.strategy.statements, len(self.mapper.primary_key))
        rows: list[T] = []
        locked: list[Identity] = []
        for self.sent in chunks(keys, limit):
            found = self.send_select(connection, plan, request)
            rows += found.rows
            locked += found.keys
        return Found(rows, locked)

    def locking(self, plan: LockPlan, lock: LockOptions, *, whole_row: bool) -> Select[Any] | None:
        options = bool(self.request.options)
        if not _in_one_statement(self.mapper, whole_row=whole_row, has_options=options):
            return None
        return select_by_keys(self.mapper, lock, self.sent, self.chosen, whole_row=whole_row)

    def under_lock(self, lock: LockOptions) -> Select[Any]:
        return select_by_keys(self.mapper, lock, self.sent, self.chosen)

    def read(self, statement: Select[Any]) -> Found:
        return Found(self._select(statement, self.sent))

    def _select(self, statement: Select[Any], keys: Sequence[Identity]) -> list[T]:
        options = self.request.options
        parameters, check = parameters_by_keys(keys), self.before_load
        return objects_of(self.session, statement, parameters, options, self.binds, check)

    def lock_and_read(self, limit: WaitLimit, *, whole_row: bool) -> Found:
        mapper, sent = self.mapper, self.sent
        locking = partial(lock_by_keys, mapper, keys=sent, whole_row=whole_row)
        locked = self.lock_keys(limit, locking, parameters_by_keys(sent))
        if not locked:
            return Found([])
        statement = select_by_keys(mapper, LockOptions.None_, locked, self.chosen)
        return Found(self._select(statement, locked), locked)

    def _missing(self, rows: Iterable[T], request: LockRequest) -> list[Identity]:
        there = set(keys_of(self.mapper, rows))
        return [identity for identity in request.keys if identity not in there]

    def record(self, found: Found, request: LockRequest) -> list[T]:
        rows: list[T] = found.rows
        keys, locked, left_out = keys_of(self.mapper, rows), found.keys, self._left_out
        if left_out:
            rows = [row for row, key in zip(rows, keys, strict=True) if key not in left_out]
            locked = [key for key in locked if key not in left_out]
            keys = keys_of(self.mapper, rows)
        self.record_rows(keys, request)
        if LockOptions.SkipLocked not in request.lock:
            for identity in self._missing(rows, request):
                self.forget_vanished(identity)
        self.give_up_others(locked, keys, request)
        asked = frozenset(request.keys)
        return self._with_held(rows, [key for key in self.request.keys if key not in asked])


def _distinct(found: Iterable[T]) -> list[T]:
    """Return each object once: the database may consider two keys equal."""
    return list({id(row): row for row in found}.values())
