"""The check-outs of one session: made, renewed, taken over, ended, and read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, cast

from sqlalchemy import Connection, inspect
from sqlalchemy.orm import Mapper

from ...checkout_info import Checkout
from ...core.documents import (
    compares_in_python,
    declared_roots,
    declares,
    document_key,
    identity_of,
    mapper_of,
    root_of,
    select_equal_keys,
)
from ...core.transaction import LockContext, add_document, database_name
from ...dialects import locking_read_is_latest, strategy_for
from ...errors import CheckoutLost, DocLockError
from ...events import listened
from ...keys import Identity, document_label, is_storable, key_text, public_key
from ...options import LockOptions, LockTimeout, check_time
from .check_outs import check_class, checkouts_of
from .conditions import ANYBODY, lost, owned_by
from .key_texts import DocumentName, document_name, read_key, table_name
from .table import LONGEST_NOTE, LONGEST_OWNER
from .table_rows import MILLISECOND, CheckoutRow, CheckoutRows

CheckoutOrEpoch = Checkout | tuple[type[Any], Any, int]
"""A check-out; or its document, by class and key, and its epoch."""

_log = logging.getLogger("sa_doclock")

_LONGEST_LEASE: Final = timedelta(days=36_500)


def check_owner(owner: object) -> str:
    """Return the owner.  :raises TypeError, ValueError: no database can store it."""
    if not isinstance(owner, str):
        raise TypeError(f"the owner must be a str, not {key_text(owner)}")
    # SQL Server counts UTF-16 code units.
    if not owner or not is_storable(owner) or len(owner.encode("utf-16-le")) // 2 > LONGEST_OWNER:
        raise ValueError(
            f"the owner must have 1 to {LONGEST_OWNER} characters (UTF-16 code units), and no NUL or "
            f"unpaired surrogate; got {key_text(owner)}"
        )
    return owner


def check_note(note: object) -> str | None:
    """Return the note.  :raises TypeError, ValueError: no database can store it."""
    if note is None:
        return None
    if not isinstance(note, str):
        raise TypeError(f"the note must be a str, not {key_text(note)}")
    if not is_storable(note):
        raise ValueError(f"the note {key_text(note)} contains a NUL or an unpaired surrogate")
    length = len(note.encode())
    if length > LONGEST_NOTE:
        raise ValueError(
            f"the note {key_text(note)} has {length} bytes in UTF-8, and a note has at most "
            f"{LONGEST_NOTE}: keep the text in a table of your own"
        )
    return note


def check_lease(lease: LockTimeout) -> timedelta:
    """Return the time of a check-out, in whole milliseconds, rounded up.

    :raises TypeError: it is neither a timedelta nor a number of seconds.
    :raises ValueError: it is shorter than a millisecond, or longer than a hundred years.
    """
    if lease is None:
        raise TypeError("lease must be seconds or a timedelta, not None")
    seconds = check_time("lease", lease)
    if not MILLISECOND.total_seconds() <= seconds <= _LONGEST_LEASE.total_seconds():
        raise ValueError(f"lease must be between a millisecond and 100 years, not {lease!r}")
    return -(-timedelta(seconds=seconds) // MILLISECOND) * MILLISECOND


class CheckOutCalls:
    """The check-outs of one session; its methods, which have the promises, call this.

    :param lock: the session's ``get_one_entity()``.
    :raises LockMisuse: the session was made without ``checkouts=``.
    """

    def __init__(self, state: LockContext, lock: Callable[..., Any]) -> None:
        self._state, self._lock = state, lock
        self._part = checkouts_of(state)
        self._reader, self._table = self._part.reader, self._part.reader.table

    def check_out(
        self,
        entity: type[Any],
        ident: Any,
        owner: str,
        lease: timedelta | float,
        note: str | None,
        lock_timeout: LockTimeout,
        *,
        takes_over: bool = False,
    ) -> Checkout:
        """Check a document out.

        :param takes_over: even if another owner has it.
        """
        condition = ANYBODY if takes_over else owned_by(owner)
        check_owner(owner)
        time = check_lease(lease)
        check_note(note)
        checkout = None
        with _undone_if_refused(self._state):
            while checkout is None:  # repeats only if a renewal came in between
                self._part.read_again()
                found = self._lock(
                    entity,
                    ident,
                    LockOptions.ForUpdate,
                    lock_timeout=lock_timeout,
                    checkout=condition,
                )
                checkout = self._write(inspect(found), owner, time, note, renews=not takes_over)
        return checkout

    def _write(
        self, header: Any, owner: str, lease: timedelta, note: str | None, *, renews: bool
    ) -> Checkout | None:
        """Give the document, whose lock is held, to this owner.

        :param renews: the owner already has it, and keeps the epoch.
        :returns: None if another change came in between (a renewal or check-in needs no lock of the
            header): try again.
        """
        document = document_key(header.mapper, header.identity)
        root, identity = root_of(header.mapper), document[1]
        rows, name = self._rows_and_name(root, identity)
        before = self._part.row(document)
        self._part.read_again()
        values: dict[str, Any]
        if renews and before.is_valid and before.owner == owner:
            change, values = "renewed", {"note": before.note if note is None else note}
        else:
            taken = before.is_valid and not renews
            change = "taken over" if taken else "checked out"
            epoch = 1 if before.id is None else before.epoch + 1
            values = {"owner": owner, "since": before.now, "note": note, "epoch": epoch}
        values |= {"until": before.now + lease, "lease": lease // MILLISECOND}
        if before.id is None:
            rows.insert(name, values)
        elif not rows.change(before, values):
            return None
        return self._report(replace(before, **values).as_checkout(root, identity), change)

    def renew(self, given: CheckoutOrEpoch, lease: timedelta | float | None) -> Checkout:
        """Set a new end of a check-out.  :raises CheckoutLost: it has ended."""
        time = None if lease is None else check_lease(lease)
        with _undone_if_refused(self._state):
            checkout = self._checkout_of(given)
            rows, name = self._rows_to_change(checkout)
            time = time or checkout.lease
            # The UPDATE locks the row, so later reads stay true; on SQLite, the file.
            written = {"lease": time // MILLISECOND}
            if not rows.change_open(name, checkout.epoch, written):
                raise self._lost_since(checkout, rows.read_one(name))
            before = rows.read_one(name)
            values: dict[str, Any] = {"until": before.now + time, **written}
            if not rows.change(before, values):
                raise self._lost_since(checkout, rows.read_one(name))
            self._part.read_again()
            renewed = replace(before, **values).as_checkout(*document_of(checkout))
            return self._report(renewed, "renewed")

    def check_in(self, given: CheckoutOrEpoch) -> None:
        """End a check-out.  :raises CheckoutLost: it has ended already."""
        with _undone_if_refused(self._state):
            checkout = self._checkout_of(given)
            rows, name = self._rows_to_change(checkout)
            if not rows.change_open(name, checkout.epoch, {"until": None}):
                raise self._lost_since(checkout, rows.read_one(name))
            self._part.read_again()
            self._report(checkout, "checked in")

    def _checkout_of(self, given: CheckoutOrEpoch) -> Checkout:
        """Return the check-out, reading it if the caller gave only its epoch.

        :raises CheckoutLost: the latest check-out has another epoch, or was checked in.
        """
        if not isinstance(given, tuple):
            return given
        entity, ident, epoch = given
        if isinstance(epoch, bool) or not isinstance(epoch, int):
            raise TypeError(f"the epoch must be an int, not {key_text(epoch)}")
        self._state.transaction.refuse()
        root, identity = self._root_and_key(entity, ident)
        rows, name = self._rows_and_name(root, identity, writes=True)
        row = rows.read_one(name, timed=False)
        if row.open_epoch == epoch:
            return row.as_checkout(root, identity)
        raise self._lost(root.class_, public_key(identity), epoch, row)

    def _root_and_key(self, entity: type[Any], ident: Any) -> tuple[Mapper[Any], Identity]:
        """Return the root and the key as stored.  :raises LockMisuse: the class cannot be checked out."""
        mapper = mapper_of(entity)
        check_class(mapper)
        root, identity = root_of(mapper), identity_of(mapper, ident)
        if not compares_in_python(root):
            stored = dict(select_equal_keys(self._reader.session(), root, {identity: None}))
            identity = stored.get(identity, identity)
        return root, identity

    def find(self, entity: type[Any], ident: Any, *, expired: bool) -> Checkout | None:
        """Return the check-out of a document, or None."""
        self._state.transaction.refuse()
        root, identity = self._root_and_key(entity, ident)
        rows, name = self._rows_and_name(root, identity)
        row = rows.read_one(name, timed=False)
        is_open = row.open_epoch is not None if expired else row.is_valid
        return row.as_checkout(root, identity) if is_open else None

    def find_all(
        self, entity: type[Any] | None, owner: str | None, *, expired: bool
    ) -> list[Checkout]:
        """Return the check-outs of this class, or of all classes, the oldest first."""
        self._state.transaction.refuse()
        if not isinstance(owner, (str, type(None))):
            raise TypeError(f"owner must be a str or None, not {key_text(owner)}")
        found: list[Checkout] = []
        for connection, roots in self._databases(entity):
            by_table = {table_name(connection, root): root for root in roots}
            rows = CheckoutRows(self._table, connection)
            for row in rows.select_open([*by_table], owner, expired=expired):
                root = by_table[row.document]
                identity = read_key(root, row.ident)
                checkout = CheckoutRow(*cast("tuple[Any, ...]", row[:-2])).as_checkout(
                    root, identity or (row.ident,)
                )
                if identity is None:
                    checkout = replace(checkout, unreadable=True)
                if owner is None or checkout.owner == owner:  # may ignore case
                    found.append(checkout)
        return sorted(found, key=lambda known: known.since)

    def _databases(
        self, entity: type[Any] | None
    ) -> Sequence[tuple[Connection, Sequence[Mapper[Any]]]]:
        if entity is not None:
            check_class(mapper_of(entity))
            roots = [root_of(mapper_of(entity))]
        else:
            roots = [root for root in declared_roots() if declares(root, "checkout")]
        by_connection: dict[Connection, list[Mapper[Any]]] = {}
        for root in roots:
            by_connection.setdefault(self._reader.connection(root), []).append(root)
        return [*by_connection.items()]

    def _rows_and_name(
        self, root: Mapper[Any], identity: Identity, *, writes: bool = False
    ) -> tuple[CheckoutRows, DocumentName]:
        connection = self._reader.connection(root, writes=writes)
        latest = writes and locking_read_is_latest(strategy_for(connection).isolation)
        rows = CheckoutRows(self._table, connection, latest=latest)
        return rows, document_name(connection, root, identity)

    def _rows_to_change(self, checkout: Checkout) -> tuple[CheckoutRows, DocumentName]:
        """Return the rows and the name of a checked-out document that this session may write."""
        self._state.transaction.refuse()
        self._state.transaction.refuse_write()
        return self._rows_and_name(*document_of(checkout), writes=True)

    def _report(self, checkout: Checkout, change: str) -> Checkout:
        label = document_label(checkout.entity, checkout.ident)
        level = logging.INFO if change == "taken over" else logging.DEBUG
        fields = {"document": label, "owner": checkout.owner, "epoch": checkout.epoch}
        _log.log(
            level,
            "%s: %s, epoch %s, by %s",
            *(label, change, checkout.epoch, key_text(checkout.owner)),
            extra={**fields, "outcome": change},
        )
        if "checkout_changed" in listened:
            dispatch = self._state.session().dispatch
            dispatch.checkout_changed(self._reader.session(), checkout, change)
        return checkout

    def _lost_since(self, checkout: Checkout, row: CheckoutRow) -> CheckoutLost:
        return self._lost(checkout.entity, checkout.ident, checkout.epoch, row)

    def _lost(self, entity: type[Any], ident: Any, epoch: int, row: CheckoutRow) -> CheckoutLost:
        error = lost(epoch, row)
        database = database_name(self._reader.session(), {"mapper": inspect(entity)})
        add_document(error, entity, ident, LockOptions.ForUpdate, database)
        return error


@contextmanager
def _undone_if_refused(state: LockContext) -> Iterator[None]:
    opens, mark = not state.session().in_transaction(), state.ledger.mark()
    try:
        yield
    except BaseException as error:
        if opens:
            state.roll_back_quietly()
        elif isinstance(error, DocLockError) and state.transaction.cause() is None:
            state.transaction.give_up(mark, reported=True)
        raise


def document_of(checkout: object) -> tuple[Mapper[Any], Identity]:
    """Return the root and the key of a check-out's document.

    :raises TypeError: it is not a Checkout.
    """
    if not isinstance(checkout, Checkout):
        raise TypeError(f"checkout must be a Checkout, not {key_text(checkout)}")
    root = root_of(mapper_of(checkout.entity))
    if checkout.unreadable:
        raise ValueError(
            f"{root.class_.__name__} cannot read the key {key_text(checkout.ident)} of this check-out; "
            "if the document no longer exists, delete the row from the table of check-outs"
        )
    return root, identity_of(root, checkout.ident)
