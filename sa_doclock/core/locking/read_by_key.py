"""Documents read by their primary keys without a lock: plain reads, dirty reads, and held documents.

``get_entity()`` and ``get_entities()`` call it if they take no lock, and the targets of ``by_key``
for documents that a held lock covers.  Each function returns the session's objects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from ...dialects import has_hint
from ...errors import LockMisuse, LockNotSupported
from ...keys import Identity, key_text, public_key
from ...options import LockOptions, is_row_lock
from ..documents import (
    has_expired,
    key_columns,
    key_order,
    plain_key_type,
    root_of,
    row_order,
    select_equal_keys,
)
from ..statements import (
    chunks,
    key_in,
    parameters_by_key,
    parameters_by_keys,
    select_by_key,
    select_by_keys,
)
from ..transaction import (
    LockContext,
    LockPlan,
    LockRequest,
    TransactionConnection,
    add_document,
    database_name,
)
from .acquire import Found
from .locked_rows import objects_of


def read_one(context: LockContext, request: LockRequest) -> Any:
    """Read as ``Session.get()`` does, or by a dirty read if the database has one.

    :raises LockMisuse: the key found several rows.
    """
    mapper: Any = request.mapper
    session, lock = context.session(), request.lock
    if lock is not LockOptions.NoLock or not has_hint(session.get_bind(mapper), lock):
        return session.get(mapper.class_, request.keys[0], options=request.options)
    parameters = parameters_by_key(mapper, request.keys[0])
    found = _read(context, select_by_key(mapper, lock), parameters, request)
    if len(found) > 1:
        raise several_rows(request.keys[0], keys_of(mapper, found))
    return found[0] if found else None


def read_entities(context: LockContext, request: LockRequest) -> list[Any]:
    """Read the rows of get_entities(), in ascending key order.

    :raises LockMisuse: a key found several rows.
    """
    mapper: Any = request.mapper
    found = read_many(context, mapper, request.keys, request, request.lock)
    if plain_key_type(mapper) is int:
        return found
    keys, session = keys_of(mapper, found), context.session()
    if not set(request.keys).issuperset(keys):
        try:
            refuse_several_rows(session, root_of(mapper), request.keys, keys)
        except LockMisuse as error:
            database = database_name(session, request.bind_arguments)
            add_document(error, mapper.class_, None, None, database)
            raise
    return found


def read_many(
    context: LockContext,
    mapper: Mapper[Any],
    keys: Sequence[Identity],
    request: LockRequest,
    lock: LockOptions = LockOptions.None_,
) -> list[Any]:
    """Read the rows of these keys as objects of a class, with the options of the request."""
    found: list[Any] = []
    for some in chunks(keys):
        statement = select_by_keys(mapper, lock, some)
        found += _read(context, statement, parameters_by_keys(some), request)
    if key_order(mapper) is not None:
        found.sort(key=row_order(mapper))
    return found


def read_held_one(context: LockContext, request: LockRequest) -> Any:
    """Return a held document, unchanged if nothing needs loading."""
    known, to_read = _known(context, request, request.keys[0])
    if to_read is None:
        return known
    statement = select_by_key(to_read, LockOptions.None_)
    found = _read(context, statement, parameters_by_key(to_read, request.keys[0]), request)
    return found[0] if found else None  # the key of a held lock belongs to one row


def read_held(context: LockContext, request: LockRequest, keys: Iterable[Identity]) -> list[Any]:
    """Return held documents, in any order."""
    found: list[Any] = []
    unread: dict[Mapper[Any], list[Identity]] = defaultdict(list)
    for key in keys:
        known, to_read = _known(context, request, key)
        if to_read is None:
            found.append(known)
        else:
            unread[to_read].append(key)
    for mapper, some in unread.items():
        found += read_many(context, mapper, some, request)
    return found


def _known(
    context: LockContext, request: LockRequest, key: Identity
) -> tuple[Any, Mapper[Any] | None]:
    """Return the object of a locked row, and the class to read it as, or None if it is loaded.

    An expired object is read as its own class, whose columns have expired too.
    """
    mapper: Any = request.mapper
    known = context.session().identity_map.get(mapper.identity_key_from_primary_key(key))
    if not isinstance(known, mapper.class_) or request.options:
        return known, mapper
    state = instance_state(known)
    # Usually nothing has expired.  Checked inline to save a call.
    if not (state.expired_attributes and has_expired(state, mapper)):
        return known, None
    return known, state.manager.mapper


def _read(
    context: LockContext,
    statement: Select[Any],
    parameters: Mapping[str, Any],
    request: LockRequest,
) -> list[Any]:
    session = context.session()
    with session.no_autoflush:
        return objects_of(session, statement, parameters, request.options)


def keys_of(mapper: Mapper[Any], found: Iterable[Any]) -> list[Identity]:
    """Return the primary keys of these objects."""
    return [tuple(mapper.primary_key_from_instance(row)) for row in found]


def several_rows(key: Identity, found: Sequence[Identity]) -> LockMisuse:
    """Return the error of a key that found several rows, which have these keys."""
    keys = ", ".join(key_text(public_key(identity)) for identity in found[:3])
    return LockMisuse(
        f"the database has {len(found)} rows for the key {key_text(public_key(key))}, such as "
        f"{keys}: the mapped primary key is not unique, or the type of the value differs from "
        "that of its column"
    )


def refuse_several_rows(
    session: Session, root: Mapper[Any], keys: Iterable[Identity], found: Collection[Identity]
) -> None:
    """Refuse a key that found several of these rows, if only the database can tell.

    :raises LockMisuse: there is one.
    """
    if len(found) <= 1:
        return
    known = frozenset(found)
    rows: defaultdict[Identity, list[Identity]] = defaultdict(list)
    unknown = dict.fromkeys(key for key in keys if key not in known)
    for key, stored in select_equal_keys(session, root, unknown):
        rows[key].append(stored)
    for key, several in rows.items():
        if len(several) > 1:
            raise several_rows(key, several)


def why_hidden(connection: TransactionConnection, plan: LockPlan) -> str | None:
    """Return why the database may hide a readable row from a lock, or None."""
    if plan.table is None or not is_row_lock(connection.row_lock(plan)):
        return None
    return plan.strategy.hides_rows(connection.connection, plan.table)


def find_again(
    session: Session,
    connection: TransactionConnection,
    plan: LockPlan,
    mapper: Mapper[Any],
    missing: Sequence[Identity],
    lock_again: Callable[[], Found],
) -> Found | None:
    """Return the rows that a lock finds now for these keys, after it found none; None: still none.

    :param lock_again: locks the rows again.
    :raises LockNotSupported: one of them can be read, but not locked.
    """
    why = why_hidden(connection, plan) if missing else None
    if why is None:
        return None
    columns = key_columns(mapper.class_)
    there: list[Identity] = []
    for some in chunks(missing):
        statement = select(*columns).where(key_in(columns, some))
        bind = {"bind": connection.connection}
        there += map(tuple, Session.execute(session, statement, bind_arguments=bind))
    found = lock_again() if there else None
    rows = () if found is None else found.rows
    hidden = set(there).difference(tuple(mapper.primary_key_from_instance(row)) for row in rows)
    if hidden:
        keys = ", ".join(key_text(public_key(key)) for key in sorted(hidden, key=there.index)[:3])
        raise LockNotSupported(
            f"{mapper.class_.__name__} {keys} can be read, but not locked: {why}; lock with an "
            "account that may change the row, or read it with SnapshotRead"
        )
    return found
