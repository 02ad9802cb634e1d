"""The site's page of every error text, with its cause and its cure: docs/site/hooks.py.

The texts come from the source: the calls of error classes, and the refusals by error number.
The text itself names the cure. ``CURES`` has the cures that a text leaves to the page.
"""

from __future__ import annotations

import ast
import importlib
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import sa_doclock
from sa_doclock import (
    DeadlockDetected,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    SnapshotConflict,
)
from sa_doclock.core.lock_request import LockRequest, reason
from sa_doclock.dialects import strategy_classes

PACKAGE: Final = Path(sa_doclock.__file__).parent
OTHERS: Final = ("PendingRollbackError", "NoResultFound", "ValueError", "TypeError")
CLASSES: Final = (
    *("LockNotAvailable", "DeadlockDetected", "SnapshotConflict", "LockLost"),
    *("CommitUnknown", "StaleDocument"),
    *("CheckedOut", "CheckoutLost"),
    *("LockNotSupported", "UnsavedChanges", "WrongIsolation", "LockUpgradeRefused"),
    *("LockOrderViolation", "UnlockedWrite", "LockMisuse"),
    *OTHERS,
)
"""The classes in the order of the page."""

NOT_FOR_USERS: Final = (
    "dialects/error_codes.py",
    "dialects/connection.py",
    "core/locking/acquire.py",
    "dialects/innodb.py",
)
"""Files whose TypeError is for the author of a dialect or of this library."""

CURES: Final[Mapping[str, str]] = {
    "statement_timeout or a cancel request": "try again later; the limit is the server's or the "
    "administrator's",
    "... is a view, which": "claim the rows of the table",
    "the lock dialect for ... has no named locks": "lock a row; or give the dialect named locks, as on "
    "[Adding a dialect](adding-a-dialect.md)",
    "SKIP LOCKED needs MariaDB": "leave out SkipLocked, or use a newer server",
    "the table has a clustered columnstore": "lock another table, or a name by `lock_key()`",
    "the table is memory-optimized": "lock another table, or a name by `lock_key()`",
    "SQL Server refused the lock": "look up the answer in Microsoft's page on sp_getapplock; the "
    "account may lack a privilege",
    "... needs MySQL": "leave out the modifier, or use a newer server",
    "SharedRead on MySQL needs": "update SQLAlchemy",
    "PostgreSQL cannot lock the rows": "select the entity alone, with EXISTS in place of a join",
    "no lock dialect is registered": "use a database of the list, or [add a dialect]"
    "(adding-a-dialect.md)",
    "the server is ..., to which": "use the dialect of SQLAlchemy that the vendor names",
    "SQLite locks the file": "leave out SkipLocked; use `NoWait`, or one worker",
    "... is read from a": "lock the entity that is mapped to the table",
    "explain_lock() cannot remove": "look at the statement with `echo=True` of the engine",
    "a do_orm_execute listener has added ...": "let the listener leave statements that lock alone",
    "lock_waits() is not supported on ...: it has": "ask a database with a server, or the [checklist](hangs.md)",
    "lock_waits() does not support": "look at the views of that product",
    "lock_waits() ...": "grant the privilege that the text names, or look at the product's own views",
    "no lock waits are known": "use a database that [lists them](monitoring.md)",
    "the account cannot see lock waits": "grant the privilege that [monitoring]"
    "(monitoring.md) names",
    "the transaction had started before": "take the lock before any other statement of the transaction",
    "SkipLocked needs a transaction at": "make the engine with one of these levels",
    "leave the block of this claim": "leave the `with` block of the claim first",
    "... needs new sessions": "give it the factory, not a session in use",
    "the database has ... rows for the key": "map a key that is unique, and give values of the "
    "type of its column",
    "session_factory returned a session": "let the factory make a new session at each call",
    "the session uses a Connection": "give `run_transaction()` sessions of an Engine",
    "the server answered COMMIT": "call `rollback()`, and look at the first error of the "
    "transaction",
    "there is no ... with": "answer 404, or use `get_entity()`, which returns None",
}
"""The cures of texts that do not say them, by the beginning of the text."""

_DEFAULT: Final = "give what the text asks for"
_OF_ARGUMENTS: Final = ("ValueError", "TypeError")

_VERBS = (
    "add|alter|ask|begin|bind|call|change|claim|connect|do not|end|execute|expunge|flush|fork|give|have|hint|keep|leave|"
    "let|load|lock|look|make|map|migrate|name|open|page|pass|read|remove|roll|run|say|select|set|show|switch|take|"
    "try|use|wait|decorate|reload|enter"
)
_CURE = re.compile(rf"(?:[;:.]|, so)\s+(?=(?:{_VERBS})\b)", re.IGNORECASE)


class ErrorText(NamedTuple):
    """A text, as the page shows it."""

    kind: str
    cause: str
    cure: str
    where: str


def texts() -> list[ErrorText]:
    """Return every text once, by class in the order of the page, then by position in the source."""
    found = {(kind, text): where for kind, text, where in _scanned()}
    rows = [ErrorText(kind, *split(text), where) for (kind, text), where in found.items()]
    return sorted(rows, key=lambda row: (CLASSES.index(row.kind), row.where, row.cause))


def split(text: str) -> tuple[str, str]:
    """Return the cause and the cure of a text; without a cure, advice about the argument."""
    match = _CURE.search(text)
    if match is not None:
        return text[: match.start()], text[match.end() :].partition(". The ")[0]
    reported = (cure for start, cure in CURES.items() if text.startswith(start))
    return text, next(reported, _DEFAULT)


@cache
def _scanned() -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE).as_posix()
        if where.startswith("tools/cli/"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                kind, text = node.func.id, _text_of(node.args[0], where)
                internal = where in NOT_FOR_USERS and kind == "TypeError"
                if kind in CLASSES and re.search(r"[a-z]", text) and not internal:
                    found.append((kind, text, where))
            reasons = (_text_of(value, where) for value in _reasons_of_refused(node))
            found += [(LockNotSupported.__name__, text, where) for text in filter(None, reasons)]
    for name, strategy in strategy_classes().items():
        found += [
            (row.in_lock.__name__, row.why, f"dialects/{name}")
            for row in strategy.errors.codes.values()
            if row.in_lock is not None and row.why
        ]
    no_wait = _request(LockOptions.NoWait, None)
    limited = _request(LockOptions.ForUpdate, math.inf)
    for failure in (LockNotAvailable, DeadlockDetected, SnapshotConflict):
        for request in (no_wait, limited, None):
            text = reason(failure, request).replace("inf s", "... s")
            found.append((failure.__name__, text, "core/transaction/request.py"))
    return found


def _reasons_of_refused(node: ast.AST) -> list[ast.expr]:
    """Return the reasons in an assignment to ``refused`` of a dialect."""
    if not isinstance(node, ast.Assign):
        return []
    target, given = node.targets[0], node.value
    if getattr(target, "id", getattr(target, "attr", "")) != "refused":
        return []
    if isinstance(given, ast.DictComp):
        return [given.value]
    return given.values if isinstance(given, ast.Dict) else []


def _request(lock: LockOptions, seconds: float | None) -> LockRequest:
    return LockRequest(None, None, lock, seconds, None)


def _text_of(node: ast.expr, where: str) -> str:
    """Return the text of an expression, with ``...`` for parts known only at run time."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else "..." for p in node.values)
        return re.sub(r"\.\.\.(?:, \.\.\.)+", "...", "".join(map(str, parts)))
    if isinstance(node, ast.Name) and node.id.isupper():
        module = "sa_doclock." + where.removesuffix(".py").removesuffix("/__init__").replace(
            "/", "."
        )
        return str(getattr(importlib.import_module(module), node.id))
    return ""


def without_cure() -> list[ErrorText]:
    """Return the texts without a cure, in the text itself or in ``CURES``."""
    return [row for row in texts() if row.cure == _DEFAULT and row.kind not in _OF_ARGUMENTS]


def unused_cures() -> list[str]:
    """Return the entries of ``CURES`` that match no text."""
    return [start for start in CURES if CURES[start] not in {row.cure for row in texts()}]


_INTRODUCTION: Final = """\
# Error messages

Every text of an error that this library raises, with its cause and what to do. `...` stands for what is known only then:
names, values, numbers. In front of a text about a document there is the document, the lock and the database, as in
`Order 42 FOR UPDATE on postgresql: held by another transaction; try again later, or wait for it`. [Errors](errors.md) says what
each class means for the program.
"""


def page() -> Iterator[str]:
    """Yield the page: a section with a table for each class of errors."""
    yield _INTRODUCTION
    for kind in CLASSES:
        yield f"## {kind}"
        yield ""
        yield _MEANING[kind]
        yield ""
        yield from _table(kind) if kind not in _OF_ARGUMENTS else _list(kind)
        yield ""


def _table(kind: str) -> Iterator[str]:
    yield "| Text: the cause | What to do |"
    yield "|---|---|"
    for row in texts():
        if row.kind == kind:
            yield f"| {_cell(row.cause)} | {_cell(row.cure)} |"


def _list(kind: str) -> Iterator[str]:
    for row in texts():
        if row.kind == kind:
            cure = "" if row.cure == _DEFAULT else f"; {row.cure}"
            yield f"- {_cell(row.cause + cure)}"


def _cell(text: str) -> str:
    words = " ".join(text.split()).replace("|", r"\|").replace("*", r"\*").replace("<", "&lt;")
    return re.sub(r"(?<![`\w(])(\w+)=(?=[\s,;:]|$)", r"`\1=`", words)


_MEANING: Final[Mapping[str, str]] = {
    "LockNotAvailable": "Another transaction holds the document. Nothing is wrong with the program.",
    "DeadlockDetected": "Transactions waited for each other, and the server has ended this one.",
    "SnapshotConflict": "What this transaction has read has been changed before it could write.",
    "LockLost": "The transaction that held the lock is over, and the session did not end it.",
    "CommitUnknown": "The connection was lost in COMMIT: the transaction is saved as a whole, or not at all.",
    "StaleDocument": "The caller has seen an older version of the document.",
    "CheckedOut": "Another owner has the document checked out, as `.checkout` says: [check-outs](check-outs.md).",
    "CheckoutLost": "The check-out was taken over or checked in since: [check-outs](check-outs.md).",
    "LockNotSupported": "This database, table, connection or statement cannot give the lock. What a "
    "server that is [compatible](compatible-servers.md) with PostgreSQL or MySQL cannot give is "
    "LockNotSupported too, with a text of its own.",
    "UnsavedChanges": "The object was changed before it was locked.",
    "WrongIsolation": "The open transaction has an isolation level that cannot protect a document.",
    "LockUpgradeRefused": "The transaction holds the document by a read lock.",
    "LockOrderViolation": "The program has given an order, `lock_order=`, and locks against it.",
    "UnlockedWrite": "A declared document would be written without its lock. With "
    '`guard="warn"` the same text is the warning UnlockedWriteWarning.',
    "LockMisuse": "The program uses the library in a way that cannot work.",
    "PendingRollbackError": "SQLAlchemy's own class (`sqlalchemy.exc`): the transaction has failed "
    "before, and refuses everything until `rollback()`.",
    "NoResultFound": "SQLAlchemy's own class (`sqlalchemy.exc`): the row has to be there, and is not.",
    "ValueError": "An argument has a value that has no meaning. Nothing was sent. Change the call: "
    "the text says which values there are.",
    "TypeError": "An argument is of the wrong type. Nothing was sent. Change the call: the text says "
    "what is needed.",
}
