"""The SQL matches the golden files: for every lock and kind of statement, on every database.

Reviewers read golden/; ``python -m tests.sql.regenerate`` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from difflib import unified_diff

import pytest
from sqlalchemy import Engine

from sa_doclock import LockOptions
from sa_doclock.options import base_of, is_row_lock
from tests.sql.golden import (
    BY_KEY,
    BY_KEYS,
    CLAIM_KEYS,
    CLAIMING,
    CLAIMS,
    FOLDER,
    LOCKS,
    PARTS,
    SETS,
    compiled,
    name_of,
    sent,
    text_of,
)
from tests.sql.servers import DATABASES, serving
from tests.support.rows import Test, rows

KINDS = (compiled, sent)


@pytest.mark.parametrize("name", DATABASES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_sql_is_the_golden_one(kind: Callable[[str], str], name: str) -> None:
    path = FOLDER / kind.__name__ / f"{name}.sql"
    golden = path.read_text(encoding="utf-8").splitlines()
    changes = unified_diff(golden, kind(name).splitlines(), str(path), "now", lineterm="")
    if text := "\n".join(changes):
        pytest.fail(text, pytrace=False)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_there_is_a_golden_file_for_each_database_and_no_other(kind: Callable[[str], str]) -> None:
    files = {path.stem for path in (FOLDER / kind.__name__).glob("*")}
    assert files == set(DATABASES)


# --------------------------------------------------------------------------------------------------
# Rules for every text, so that a regenerated golden file cannot lose a lock.

#: The header's table or alias in each case, by the beginning of its title; by default the plain order.
HEADERS = {
    "aliased": "o",
    "two entities, the second": "shop_customer",
    "composite": "shop_voucher",
    "schema and quoted names, aliased": "j",
    "schema and quoted names": "Journal of Group",
    "joined inheritance, aliased flat": "rented_shop_contract",
    "joined inheritance, with_polymorphic": "shop_project",
    "joined inheritance": "shop_contract",
    "single-table": "shop_ticket",
    "concrete": "shop_cold_store",
    "mapped lazy": "shop_invoice",
}
#: The end of a lock's text; {} is the header.
ENDS = {
    "postgresql": {"ForUpdate": "FOR UPDATE OF {}", "SharedRead": "FOR SHARE OF {}"},
    "mysql": {"ForUpdate": "FOR UPDATE OF {}", "SharedRead": "FOR SHARE OF {}"},
    "mysql-5.7": {"ForUpdate": "FOR UPDATE", "SharedRead": "LOCK IN SHARE MODE"},
    "mariadb": {"ForUpdate": "FOR UPDATE", "SharedRead": "LOCK IN SHARE MODE"},
}
MODIFIERS = {LockOptions.NoWait: " NOWAIT", LockOptions.SkipLocked: " SKIP LOCKED"}
HINTS = {
    "NoLock": "NOLOCK",
    "SharedRead|SkipLocked": "UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK",
    "ForUpdate": "UPDLOCK, ROWLOCK",
    "ForUpdate|NoWait": "UPDLOCK, ROWLOCK, NOWAIT",
    "ForUpdate|SkipLocked": "UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK",
}
SEEK = ", FORCESEEK"  # for cases that look up a key
HINT = re.compile(r"(\w+|\[[\w ]+\]) WITH \(([\w, ]+)\)")
WORDS = re.compile(r"FOR UPDATE|FOR SHARE|SHARE MODE|UPDLOCK")

Engines = dict[str, Engine]


def _each(*databases: str, locks: Iterable[LockOptions] = LOCKS) -> Callable[[Test], Test]:
    return rows(("name", "lock"), [(name, lock) for name in databases for lock in locks])


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(serving(name))[0] for name in DATABASES}


def _texts(lock: LockOptions, engine: Engine) -> Iterator[tuple[str, str]]:
    for title, make in SETS.items():
        yield _header(title), text_of(make(lock), engine)
    for title, make in BY_KEY.items() if is_row_lock(lock) else ():
        header = _header(title.removeprefix("by key, "))
        yield header, text_of(make(lock), engine, values_known=False)
    for title, make in BY_KEYS.items():
        yield _header(title.removeprefix("by keys, ")), text_of(make(lock), engine)
    for title, make in CLAIMS.items() if lock in CLAIMING else ():
        yield _header(title.removeprefix("claims, ")), text_of(make(lock), engine)


def _header(title: str) -> str:
    return next((name for case, name in HEADERS.items() if title.startswith(case)), "shop_order")


@_each(*ENDS, locks=[lock for lock in LOCKS if is_row_lock(lock)])
def test_a_row_lock_names_the_header_and_nothing_else(
    engines: Engines, name: str, lock: LockOptions
) -> None:
    end = ENDS[name][base_of(lock).name or ""]
    more = "".join(words for modifier, words in MODIFIERS.items() if modifier in lock)
    for header, text in _texts(lock, engines[name]):
        quoted = engines[name].dialect.identifier_preparer.quote(header)
        assert text.endswith(" " + end.format(quoted) + more)
        assert len(WORDS.findall(text)) == 1, text


@_each("mssql")
def test_a_hint_is_on_the_header_and_nothing_else(
    engines: Engines, name: str, lock: LockOptions
) -> None:
    words = HINTS.get(name_of(lock))
    for header, text in _texts(lock, engines[name]):
        assert " FOR " not in text
        found = HINT.findall(text)
        tables = {table.strip("[]") for table, _ in found}
        hints = {hint.removesuffix(SEEK) for _, hint in found}
        assert hints == ({words} if words else set()), text
        if lock is LockOptions.NoLock:  # exactly the tables of the entity
            assert header in tables
        elif words:
            assert tables == {header}
            assert len(found) == 1


@_each("mssql", locks=[lock for lock in LOCKS if "UPDLOCK" in HINTS.get(name_of(lock), "")])
def test_what_looks_up_a_key_seeks(engines: Engines, name: str, lock: LockOptions) -> None:
    cases = [*BY_KEY.values(), *BY_KEYS.values(), *(CLAIMS.values() if lock in CLAIMING else ())]
    for make in cases:
        text = text_of(make(lock), engines[name], values_known=make not in BY_KEY.values())
        assert text.count(f"{SEEK})") == 1, text
    for make in SETS.values():
        assert SEEK not in text_of(make(lock), engines[name])


@_each(*ENDS, "mssql", locks=[lock for lock in LOCKS if not is_row_lock(lock)])
def test_what_is_no_row_lock_locks_no_row(engines: Engines, name: str, lock: LockOptions) -> None:
    for _, text in _texts(lock, engines[name]):
        assert not WORDS.search(text)


@_each("sqlite")
def test_sqlite_has_no_words_for_it(engines: Engines, name: str, lock: LockOptions) -> None:
    for _, text in _texts(lock, engines[name]):
        assert not WORDS.search(text)


@_each(*DATABASES)
def test_a_mapped_join_is_in_no_text_that_locks(
    engines: Engines, name: str, lock: LockOptions
) -> None:
    text = text_of(SETS["mapped lazy='joined'"](lock), engines[name])
    plain = lock in (LockOptions.None_, LockOptions.NoLock)
    assert ("JOIN" in text) is plain


@_each(*ENDS, locks=[lock for lock in LOCKS if is_row_lock(lock)])
def test_many_are_locked_in_the_order_of_their_keys(
    engines: Engines, name: str, lock: LockOptions
) -> None:
    for make in BY_KEYS.values():
        assert re.search(r" ORDER BY [^()]+ (FOR|LOCK IN) ", text_of(make(lock), engines[name]))


@rows("name", DATABASES)
def test_the_keys_of_claims_are_read_without_a_lock(engines: Engines, name: str) -> None:
    for make in CLAIM_KEYS.values():
        text = text_of(make(LockOptions.None_), engines[name])
        assert not WORDS.search(text)
        assert not HINT.search(text)


@_each(*DATABASES)
def test_the_parts_are_read_without_a_lock(engines: Engines, name: str, lock: LockOptions) -> None:
    for make in PARTS.values():
        text = text_of(make(lock), engines[name])
        assert not WORDS.search(text)
        dirty = name == "mssql" and lock is LockOptions.NoLock
        tables = re.findall(r"(?:FROM|JOIN) \w+", text)
        assert text.count("WITH (NOLOCK)") == (len(tables) if dirty else 0), text
