"""The statements of the golden files, and their text on each database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, Select, func, inspect, select
from sqlalchemy.orm import Mapper, aliased

from sa_doclock import LockOptions, with_lock
from sa_doclock.claims.query import ClaimQuery
from sa_doclock.core.loading.load_parts import _steps, select_details
from sa_doclock.core.statements.key_selects import (
    lock_by_key,
    lock_by_keys,
    parameters_by_keys,
    select_by_key,
    select_by_keys,
)
from sa_doclock.dialects import strategy_for
from sa_doclock.options import is_row_lock
from tests.sql.models import (
    Building,
    ColdStore,
    Contract,
    Customer,
    Delivery,
    Entry,
    Fault,
    Invoice,
    Journal,
    Lease,
    Line,
    Order,
    Project,
    Ticket,
    Voucher,
)
from tests.sql.scenarios import SCENARIOS, sent_by
from tests.sql.servers import serving

# --------------------------------------------------------------------------------------------------
# The statements of the golden files: each is a shape of SELECT, built for each lock.

LOCKS = (
    LockOptions.None_,
    LockOptions.NoLock,
    LockOptions.SharedRead,
    LockOptions.SharedRead | LockOptions.NoWait,
    LockOptions.SharedRead | LockOptions.SkipLocked,
    LockOptions.ForUpdate,
    LockOptions.ForUpdate | LockOptions.NoWait,
    LockOptions.ForUpdate | LockOptions.SkipLocked,
    LockOptions.SnapshotRead,
)
"""All that DESIGN.md allows."""

Make = Callable[[LockOptions], Select[Any]]

_other = aliased(Order, name="other")
_alias = aliased(Order, name="o")
_flat = aliased(Lease, name="rented", flat=True)
_journal = aliased(Journal, name="j")
_latest = select(func.max(_other.total)).scalar_subquery()


def _locked(statement: Any, entity: Any = None) -> Make:
    return lambda lock: with_lock(statement, lock, entity)


def _mapper(entity: type[Any]) -> Mapper[Any]:
    mapper: Mapper[Any] = inspect(entity)
    return mapper


SETS: Mapping[str, Make] = {
    "plain": _locked(select(Order)),
    "filtered, in order": _locked(select(Order).where(Order.total > 5).order_by(Order.id)),
    "limit": _locked(select(Order).order_by(Order.id).limit(10)),
    "limit and offset": _locked(select(Order).order_by(Order.id).limit(10).offset(20)),
    "offset": _locked(select(Order).order_by(Order.id).offset(20)),
    "aliased": _locked(select(_alias).where(_alias.total > 5)),
    "aliased, limit": _locked(select(_alias).order_by(_alias.id).limit(10)),
    "aliased, limit and offset": _locked(select(_alias).order_by(_alias.id).limit(10).offset(20)),
    "join": _locked(select(Order).join(Order.lines).where(Line.value > 5)),
    "join with an alias of itself": _locked(select(Order).join(_other, Order.total < _other.total)),
    "outer join": _locked(select(Order).outerjoin(Order.lines).where(Line.id.is_(None))),
    "EXISTS": _locked(select(Order).where(Order.lines.any(Line.value > 5))),
    "IN a subquery": _locked(select(Order).where(Order.id.in_(select(Line.order_id)))),
    "subquery of its own table": _locked(select(Order).where(Order.total == _latest)),
    "two entities, the first": _locked(select(Order, Customer).join(Order.customer), Order),
    "two entities, the second": _locked(select(Order, Customer).join(Order.customer), Customer),
    "composite key": _locked(select(Voucher)),
    "composite key, join": _locked(select(Voucher).join(Voucher.entries).where(Entry.id > 5)),
    "composite key, limit and offset": _locked(
        select(Voucher).order_by(Voucher.year, Voucher.number).limit(10).offset(20)
    ),
    "schema and quoted names": _locked(select(Journal).where(Journal.total > 5)),
    "schema and quoted names, aliased": _locked(select(_journal).where(_journal.total > 5)),
    "schema and quoted names, limit": _locked(select(Journal).order_by(Journal.total).limit(10)),
    "joined inheritance": _locked(select(Lease)),
    "joined inheritance, limit": _locked(select(Lease).order_by(Lease.id).limit(10)),
    "joined inheritance, its root": _locked(select(Contract)),
    "joined inheritance, aliased flat": _locked(select(_flat).where(_flat.rent > 5)),
    "joined inheritance, with_polymorphic": _locked(select(Project)),
    "joined inheritance, with_polymorphic, a subclass": _locked(select(Building)),
    "single-table inheritance": _locked(select(Fault)),
    "single-table inheritance, its root": _locked(select(Ticket)),
    "concrete inheritance": _locked(select(ColdStore)),
    "mapped lazy='joined'": _locked(select(Invoice)),
}
"""The selects of entity_set() and with_lock()."""


def _by_key(entity: type[Any]) -> Make:
    return lambda lock: select_by_key(_mapper(entity), lock)


def _lock_alone(entity: type[Any]) -> Make:
    return lambda lock: lock_by_key(_mapper(entity), lock)


BY_KEY: Mapping[str, Make] = {
    "by key, plain": _by_key(Order),
    "by key, composite": _by_key(Voucher),
    "by key, schema and quoted names": _by_key(Journal),
    "by key, joined inheritance: the root's row": _lock_alone(Lease),
    "by key, joined inheritance, with_polymorphic: the root's row": _lock_alone(Project),
    "by key, single-table inheritance": _by_key(Fault),
    "by key, concrete inheritance": _by_key(ColdStore),
    "by key, mapped lazy='joined'": _by_key(Invoice),
}
"""The statements of get_entity(): lock and read, or the lock alone if there is more to read."""


def _by_keys(entity: type[Any], *keys: Sequence[Any]) -> Make:
    def make(lock: LockOptions) -> Select[Any]:
        return select_by_keys(_mapper(entity), lock, keys).params(parameters_by_keys(keys))

    return make


def _locks_alone(entity: type[Any], *keys: tuple[Any, ...]) -> Make:
    def make(lock: LockOptions) -> Select[Any]:
        return lock_by_keys(_mapper(entity), lock, keys).params(parameters_by_keys(keys))

    return make


BY_KEYS: Mapping[str, Make] = {
    "by keys, plain": _by_keys(Order, [1], [2], [3]),
    "by keys, composite": _by_keys(Voucher, [2024, 1], [2024, 2]),
    "by keys, schema and quoted names": _by_keys(Journal, [1], [2]),
    "by keys, joined inheritance: the root's rows": _locks_alone(Lease, (1,), (2,)),
    "by keys, single-table inheritance": _by_keys(Fault, [1], [2]),
    "by keys, mapped lazy='joined'": _by_keys(Invoice, [1], [2]),
}
"""The statements of get_entities()."""

TIMED = (
    "by key, plain",
    "by key, joined inheritance: the root's row",
    "by keys, plain",
    "by keys, joined inheritance: the root's rows",
)
"""Those that are shown with a limit to the wait in their text, too."""


def _part(entity: type[Any], path: str, *keys: tuple[Any, ...]) -> Make:
    def make(lock: LockOptions) -> Select[Any]:
        steps = _steps(_mapper(entity), lock)
        (step,) = [step for step in steps if step.part.path == path]
        statement, parameters = select_details(step, keys)
        return statement.params(parameters)

    return make


PARTS: Mapping[str, Make] = {
    "parts, one level": _part(Delivery, "boxes", (1,)),
    "parts, one level, of several": _part(Delivery, "boxes", (1,), (2,)),
    "parts, two levels": _part(Delivery, "boxes.items", (1,)),
    "parts, two levels, of several": _part(Delivery, "boxes.items", (1,), (2,)),
    "parts, many-to-many": _part(Delivery, "labels", (1,)),
    "parts, many-to-many, of several": _part(Delivery, "labels", (1,), (2,)),
    "parts, composite key": _part(Voucher, "entries", (2024, 1)),
    "parts, composite key, of several": _part(Voucher, "entries", (2024, 1), (2024, 2)),
}
"""The statements of get_document() and get_documents() after the lock."""


_new_orders = ClaimQuery(select(Order).where(Order.total > 5).order_by(Order.total), None)
_orders = ClaimQuery(select(Order).where(Order.total > 5), None)
_vouchers = ClaimQuery(select(Voucher), None)
_leases = ClaimQuery(select(Lease).where(Lease.rent > 5), None)


def _claimed(claimable: ClaimQuery, *keys: tuple[Any, ...]) -> Make:
    def make(lock: LockOptions) -> Select[Any]:
        return claimable.locking(keys, lock).params(claimable.parameters(keys))

    return make


def _unlocked(statement: Select[Any], parameters: Mapping[str, Any] | None = None) -> Make:
    return lambda _: statement.params(parameters or {})


_TWO = ((1,), (2,))
CLAIM_KEYS: Mapping[str, Make] = {
    "claims, keys": _unlocked(_new_orders.page(10, None)),
    "claims, keys after the first page": _unlocked(_orders.page(10, (1,))),
    "claims, keys after the first page, composite": _unlocked(_vouchers.page(10, (2024, 1))),
    "claims, keys of what still matches": _unlocked(_new_orders.matching(_TWO)),
    "claims, a row again": _unlocked(_leases.again([(1,)]), _leases.parameters([(1,)])),
}
"""The statements of claim_each() that read without a lock."""

CLAIMING = (LockOptions.ForUpdate, LockOptions.ForUpdate | LockOptions.SkipLocked)
CLAIMS: Mapping[str, Make] = {
    "claims, one": _claimed(_new_orders, (1,)),
    "claims, of several": _claimed(_new_orders, *_TWO),
    "claims, composite, of several": _claimed(_vouchers, (2024, 1), (2024, 2)),
    "claims, joined inheritance, of several": _claimed(_leases, *_TWO),
}
"""The statements of claim_each() that lock the rows which still match, of these keys."""


# --------------------------------------------------------------------------------------------------
# The text of the golden files: every case on one database, under all locks that share this text.

FOLDER = Path(__file__).with_name("golden")
TIMEOUT_SECONDS = 0.3
_WIDTH = 100

_COMPILED = """\
-- {}: what each kind of select is compiled to.  Above each text stand the locks that have it; on
-- SQL Server and SQLite, a lock that has the text of None_ is in the transaction, not in the text.
"""
_SENT = """\
-- {}: what a session tells the driver, call by call.  Parameters stand behind their statement, what
-- the driver does by a method is in parentheses.  A limit to the wait that is in no compiled text is
-- here.
"""


def compiled(database: str) -> str:
    """Return the contents of ``golden/compiled/<database>.sql``."""
    with serving(database) as (engine, _):
        return "\n".join((_COMPILED.format(database), *_sections(engine)))


def sent(database: str) -> str:
    """Return the contents of ``golden/sent/<database>.sql``."""
    parts = [_SENT.format(database)]
    for title, act in SCENARIOS.items():
        with serving(database) as (engine, script):
            parts.append(_heading(title) + "\n" + "\n".join(sent_by(act, engine, script)) + "\n")
    return "\n".join(parts)


def text_of(statement: Select[Any], engine: Engine, *, values_known: bool = True) -> str:
    """Compile as the connected dialect does, with SQLAlchemy's own line breaks."""
    # SQL Server's TOP takes a literal number, which is filled in after compilation.
    how = {"render_postcompile": values_known}
    compiled = statement.compile(dialect=engine.dialect, compile_kwargs=how)
    text = str(compiled)
    if not values_known:  # only the limit is known: SQLAlchemy puts it into the text
        limit = compiled.params.get("doclock_limit")
        text = text.replace("__[POSTCOMPILE_doclock_limit]", str(limit))
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _sections(engine: Engine) -> Iterator[str]:
    row_locks = [lock for lock in LOCKS if is_row_lock(lock)]
    for title, make in SETS.items():
        yield from _section(title, make, LOCKS, engine)
    for title, make in BY_KEY.items():
        yield from _section(title, make, row_locks, engine, values_known=False)
    for title, make in BY_KEYS.items():
        yield from _section(title, make, LOCKS, engine)
    for title in TIMED:
        many = title in BY_KEYS
        plain = (BY_KEYS if many else BY_KEY)[title]
        timed, queueing = _timed(plain, engine), [LockOptions.SharedRead, LockOptions.ForUpdate]
        if any(
            text_of(timed(one), engine, values_known=many)
            != text_of(plain(one), engine, values_known=many)
            for one in queueing
        ):
            yield from _section(f"{title}; {TIMEOUT_SECONDS} s", timed, queueing, engine, many)
    for title, make in PARTS.items():
        yield from _section(title, make, [LockOptions.None_, LockOptions.NoLock], engine)
    for title, make in CLAIM_KEYS.items():
        yield from _section(title, make, [LockOptions.None_], engine)
    for title, make in CLAIMS.items():
        yield from _section(title, make, CLAIMING, engine)


def _timed(make: Make, engine: Engine) -> Make:
    strategy = strategy_for(engine)
    return lambda lock: strategy.waits.timed(make(lock), lock, TIMEOUT_SECONDS)


def _section(
    title: str, make: Make, locks: Iterable[LockOptions], engine: Engine, values_known: bool = True
) -> Iterator[str]:
    texts: dict[str, list[str]] = {}
    for lock in locks:
        text = text_of(make(lock), engine, values_known=values_known)
        texts.setdefault(text, []).append(name_of(lock))
    yield _heading(title)
    for text, names in texts.items():
        yield f"-- {', '.join(names)}\n{text};\n"


def _heading(title: str) -> str:
    return f"-- {title} ".ljust(_WIDTH, "-")


def name_of(lock: LockOptions) -> str:
    """Write the lock as a program would."""
    if lock is LockOptions.None_:
        return "None_"
    return "|".join(member.name or "" for member in LockOptions if member & lock)
