"""The generated parts of the pages: the statements sent to each database, the effect of each mistake, and errors.

Real sessions send the statements, through the strategies, to a scripted driver (tests/sql).
``python -m tests.docs.tables`` writes them into the pages; tests/docs/test_readme.py compares.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import select

import sa_doclock
from lab.programs import table as audited
from lab.versions import table as versions
from sa_doclock import LockingSession, LockNotSupported, LockOptions, with_lock
from sa_doclock.dialects import levels_for, strategy_for
from tests.docs import compatible, idioms, invariants, reference
from tests.docs.pages import ROOT, generated_parts, pages, with_generated_parts
from tests.integration.lock_errors import test_lock_errors as lock_errors
from tests.integration.mistakes.test_mistakes import MISTAKES
from tests.reliability import record as soaked
from tests.sql.models import Lease, Line, Order
from tests.sql.servers import serving

PRODUCTS: Mapping[str, str] = {
    "postgresql": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
    "mssql": "SQL Server",
    "sqlite": "SQLite",
}
"""The databases by dialect file, in the order of the tables."""

_FOR_UPDATE, _SHARED, _SNAPSHOT = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.SnapshotRead,
)
_NO_WAIT, _SKIP = LockOptions.NoWait, LockOptions.SkipLocked
LOCKS = (
    LockOptions.None_,
    LockOptions.NoLock,
    _SHARED,
    _SHARED | _NO_WAIT,
    _SHARED | _SKIP,
    _FOR_UPDATE,
    _FOR_UPDATE | _NO_WAIT,
    _FOR_UPDATE | _SKIP,
    _SNAPSHOT,
)
SECONDS = 0.3
"""The lock_timeout in all examples."""

_SHORT = {"READ COMMITTED": "RC", "REPEATABLE READ": "RR"}
_NAMES = {"shop_order": "orders", "shop_line": "order_lines", "shop_customer": "customers"}
_NAMES |= {"shop_contract": "contracts", "shop_lease": "leases"}
# The storage engine, or the kind of relation, queried once.
_ONCE = ("SELECT engine FROM", "SHOW CREATE TABLE", "SELECT CAST(relkind AS text),")
_ASKS = re.compile(rf"{'|'.join(map(re.escape, _ONCE))}|SELECT @@|PRAGMA \w+$")
_SETS_LEVEL = re.compile(r"SET (SESSION )?TRANSACTION ISOLATION|COMMIT|\(")

Act = Callable[[LockingSession], object]


class Sent(NamedTuple):
    """The level and the statements sent for a lock; none if it is refused."""

    level: str | None
    statements: list[str]


def name_of(lock: LockOptions) -> str:
    """Write the lock as a program does, without ``LockOptions.``."""
    return " | ".join(member.name or "" for member in LockOptions if member & lock) or "None_"


@cache
def _statements_of(database: str, lock: LockOptions, act: Act) -> Sent:
    with serving(database) as (engine, script), LockingSession(engine) as session:
        levels = levels_for(strategy_for(engine).isolation, lock)
        try:
            act(session)
        except LockNotSupported:
            return Sent(None, [])
        return Sent(next(iter(levels), None), [_as_on_a_page(sql) for sql in script.sent])


@cache
def _takes(lock: LockOptions, seconds: float | None = None) -> Act:
    if LockOptions.SkipLocked in lock:
        return lambda session: session.scalars(session.entity_set(Order, lock))
    return lambda session: session.get_entity(Order, 1, lock, lock_timeout=seconds)


def _as_on_a_page(statement: str) -> str:
    words = " ".join(statement.split())
    return re.sub("|".join(_NAMES), lambda name: _NAMES[name[0]], words)


def first_screen() -> Iterator[str]:
    """Yield the databases, with the SQL of the two locks."""
    yield "| | `ForUpdate` | `SharedRead` | [tests have run on](docs/versions-tested.md) |"
    yield "|---|---|---|---|"
    for database, product in PRODUCTS.items():
        locks = " | ".join(_cell(database, lock) for lock in (_FOR_UPDATE, _SHARED))
        yield f"| [{product}](docs/{database}.md) | {locks} | {_run_on(database, product)} |"


def _run_on(database: str, product: str) -> str:
    reported = versions.in_words(product)
    return f"{reported}: [evidence](docs/mssql.md#evidence)" if database == "mssql" else reported


def lock_options() -> Iterator[str]:
    """Yield the SQL of each LockOptions on each database."""
    yield "| `LockOptions.` | On | Implementation |"
    yield "|---|---|---|"
    for lock in LOCKS:
        yield from _rows(f"`{name_of(lock)}`".replace("|", r"\|"), lock)
    yield from _rows(f"`ForUpdate`, `lock_timeout={SECONDS}`", _FOR_UPDATE, SECONDS)


def _rows(title: str, lock: LockOptions, seconds: float | None = None) -> Iterator[str]:
    """Yield a row for databases with the same result; the first row has the title."""
    same: dict[str, list[str]] = {}
    for database, product in PRODUCTS.items():
        same.setdefault(_cell(database, lock, seconds), []).append(product)
    for cell, products in same.items():
        names = "all" if len(products) == len(PRODUCTS) else ", ".join(products)
        yield f"| {title} | {names} | {cell} |"
        title = ""


def _cell(database: str, lock: LockOptions, seconds: float | None = None) -> str:
    """Name the parts of the lock: the isolation level, the statement before it, the words in the SELECT."""
    reported = _statements_of(database, lock, _takes(lock, seconds))
    if not reported.statements:
        return "LockNotSupported"
    words = [_SHORT.get(reported.level, reported.level)] if reported.level else []
    for statement in reported.statements:
        if "FROM orders" in statement:
            words += _added_to_plain(database, statement)
            break
        if not _ASKS.match(statement) and not _SETS_LEVEL.match(statement):
            words.append(_brief(statement))
        if statement == "BEGIN IMMEDIATE":
            break  # SQLite holds its lock already
    return ", ".join(words) or "plain read"


def _added_to_plain(database: str, statement: str) -> list[str]:
    """Return the words that the locking SELECT adds to the plain SELECT."""
    (plain,) = _statements_of(database, LockOptions.None_, _takes(LockOptions.None_)).statements
    columns = plain[: plain.index(" FROM")].removeprefix("SELECT ")
    where = re.escape(plain[plain.index("WHERE") : plain.index(" = ")])
    rest = re.sub(r" -- .*$", "", statement).replace(columns, "")
    rest = re.sub(rf"^SELECT|FROM orders|{where} = \S+", "\n", rest)
    return [f"`{part.strip()}`" for part in rest.splitlines() if part.strip()]


def _brief(statement: str) -> str:
    limit = re.search(r"'\d+ms'", statement)  # PostgreSQL's, in a parameter
    return f"`set_config('lock_timeout', {limit[0]}, true)`" if limit else f"`{statement}`"


def sent_to(database: str) -> Iterator[str]:
    """Yield the statements that one database receives for each lock."""
    yield "```sql"
    once = [sql for sql in _LOCKED[0][1](database) if sql.startswith(_ONCE)]
    if once:
        yield from _section("once for each table and connection", once)
    for number, (title, reported) in enumerate(_LOCKED):
        yield from [""] * bool(number or once)
        yield from _section(title, [sql for sql in reported(database) if not sql.startswith(_ONCE)])
    yield "```"


def _section(title: str, statements: list[str]) -> Iterator[str]:
    yield f"-- {title}"
    for statement in statements or ["(LockNotSupported: nothing is sent)"]:
        sql, _, parameters = statement.partition(" -- ")
        if sql.startswith("("):
            yield f"-- {sql}"
        else:
            yield f"{sql};" + (f"  -- {parameters}" if parameters else "")


def _locking(lock: LockOptions, act: Act) -> Callable[[str], list[str]]:
    return lambda database: _statements_of(database, lock, act).statements


_LOCKED: Sequence[tuple[str, Callable[[str], list[str]]]] = [
    *((name_of(lock), _locking(lock, _takes(lock))) for lock in LOCKS[2:]),
    *(
        (f"{name_of(lock)}, lock_timeout={SECONDS}", _locking(lock, _takes(lock, SECONDS)))
        for lock in (_SHARED, _FOR_UPDATE)
    ),
    (
        "ForUpdate, joined inheritance: a lease is a contract",
        _locking(_FOR_UPDATE, lambda session: session.get_entity(Lease, 1, _FOR_UPDATE)),
    ),
    (
        "ForUpdate, a set over a join",
        _locking(
            _FOR_UPDATE,
            lambda session: session.scalars(
                with_lock(select(Order).join(Order.lines).where(Line.value > 0), _FOR_UPDATE)
            ),
        ),
    ),
]


def errors_by_number(database: str) -> Iterator[str]:
    """Yield the table of docs/errors.md for this database."""
    heads = ["Number", "Error", "When", "From a", "What is left of the transaction", "What to do"]
    heads += ["[Evidence](mssql.md#evidence)"] if database == "mssql" else []
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in lock_errors.ROWS[database]:
        where = ", ".join(one.value for one in row.where)
        cells = [f"{row.number} {row.name}", f"`{row.error.__name__}`", row.when, where]
        cells += [row.left.value, row.do.words]
        if database == "mssql":
            cells.append("S" if row.left is lock_errors.Left.UNKNOWN else "S; what is left: M")
        yield f"| {' | '.join(cells)} |"


def mistakes() -> Iterator[str]:
    """Yield the table of docs/documents.md."""
    yield "| Mistake | Plain SQLAlchemy | Here |"
    yield "|---|---|---|"
    for row in MISTAKES:
        yield f"| {row.mistake} | {row.plain} | {row.here} |"


def module_map() -> Iterator[str]:
    """Yield a table of the packages of sa_doclock with their purpose."""
    yield "| | |"
    yield "|---|---|"
    package = Path(sa_doclock.__file__).parent
    for path in sorted(package.rglob("*/__init__.py")):
        name = path.parent.relative_to(package).as_posix()
        purpose = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first = " ".join(purpose.partition("\n\n")[0].split()).replace("``", "`")
        yield f"| `{name}/` | {first} |"


PARTS: Mapping[str, Callable[[], Iterable[str]]] = {
    "audited-programs": audited.rows,
    "databases": first_screen,
    "dialect-roles": reference.table_of_roles,
    "compatible-servers": compatible.sections,
    "doctor-checks": reference.sections,
    "idioms": idioms.table,
    "invariants": invariants.table,
    "lock-options": lock_options,
    "metrics": reference.metrics,
    "mistakes": mistakes,
    "module-map": module_map,
    "public-names": reference.table_of_names,
    "failovers": soaked.failovers,
    "versions-tested": versions.table,
    "reliability": soaked.in_short,
    **{f"sent-to-{database}": partial(sent_to, database) for database in PRODUCTS},
    **{f"lock-errors-{database}": partial(errors_by_number, database) for database in PRODUCTS},
}
"""The generated parts, by the name in the comment that marks their place."""


def current(names: Iterable[str]) -> dict[str, str]:
    """Return the current text of these parts."""
    return {name: "".join(f"{line}\n" for line in PARTS[name]()) for name in names}


def main() -> None:
    """Write the generated parts into the pages."""
    for page in pages():
        text = with_generated_parts(page, current(generated_parts(page)))
        (ROOT / page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
