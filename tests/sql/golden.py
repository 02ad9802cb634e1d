"""The text of the golden files: every case on one database, under all locks that have this text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, Select

from sa_doclock import LockOptions
from sa_doclock.dialects import strategy_for
from sa_doclock.options import is_row_lock
from tests.sql.cases import (
    BY_KEY,
    BY_KEYS,
    CLAIM_KEYS,
    CLAIMING,
    CLAIMS,
    LOCKS,
    PARTS,
    SETS,
    TIMED,
    Make,
)
from tests.sql.scenarios import SCENARIOS, sent_by
from tests.sql.servers import serving

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
    """Return what ``golden/compiled/<database>.sql`` holds."""
    with serving(database) as (engine, _):
        return "\n".join((_COMPILED.format(database), *_sections(engine)))


def sent(database: str) -> str:
    """Return what ``golden/sent/<database>.sql`` holds."""
    parts = [_SENT.format(database)]
    for title, act in SCENARIOS.items():
        with serving(database) as (engine, script):
            parts.append(_heading(title) + "\n" + "\n".join(sent_by(act, engine, script)) + "\n")
    return "\n".join(parts)


def text_of(statement: Select[Any], engine: Engine, *, values_known: bool = True) -> str:
    """Compile as the connected dialect does; a line ends where SQLAlchemy ends it."""
    # SQL Server's TOP is followed by the number itself, which comes after compilation.
    how = {"render_postcompile": values_known}
    compiled = statement.compile(dialect=engine.dialect, compile_kwargs=how)
    text = str(compiled)
    if not values_known:  # but that of the limit is known, which SQLAlchemy puts into the text
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
    """Spell the lock as a program does."""
    if lock is LockOptions.None_:
        return "None_"
    return "|".join(member.name or "" for member in LockOptions if member & lock)
