"""The waits of a server in one sentence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ...wait_info import KEY_MARK, LockConnection
from .wait_forest import Node

_LONGEST_COMMENT = 500
_LINE = re.compile(r"[\w./\\-]+\.py:\d+")


def summary_of(forest: Sequence[Node]) -> str:
    """Return the sentence: who waits for what, and what is known of the connection that most of them wait for.

    :param forest: not empty.
    """
    locks = Counter(_locks(forest))
    ((lock, _),) = locks.most_common(1)
    waiters = locks.total()
    more = len(locks) - 1
    what = f"{lock} and {_count(more, 'other lock')}" if more else lock
    who = "1 connection waits" if waiters == 1 else f"{waiters} connections wait"
    return f"{who} for {what}{_holders(forest, one_lock=not more)}"


def _locks(forest: Sequence[Node]) -> Iterator[str]:
    """Yield for each connection that waits what it waits for."""
    for top in forest:
        if top.closes is not None:
            yield top.closes.lock
        for node in top.from_top():
            if node.wait is not None:
                yield node.wait.lock


def _holders(forest: Sequence[Node], *, one_lock: bool) -> str:
    worst = forest[0]
    trees = [top for top in forest if top.waiters]
    alone = len(forest) - len(trees)  # who waits for them stands below another one
    if worst.closes is not None:
        where = "in a circle, which is a deadlock"
        return f", {where}" if len(trees) == 1 else f"; {worst.waiting} of them {where}"
    if len(trees) > 1:
        where = f"; {worst.behind} of them behind {worst.tree}"
    else:
        where = f", {'held by' if one_lock else 'behind'} {worst.tree}"
        where += f" and {_count(alone, 'other')}" if alone else ""
    return ", ".join([where, *_known(worst.connection)])


def _known(connection: LockConnection) -> Iterator[str]:
    if connection.state is not None:
        yield connection.state
    if connection.transaction_seconds is not None:
        yield f"open for {connection.transaction_seconds:.1f} s"
    line = line_of(connection)
    if line is not None:
        yield f"line {line}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def line_of(connection: LockConnection) -> str | None:
    """Return the line of the program, such as ``shop/orders.py:31``, if it has told it to the server.

    It may be in the name of the application, or in a comment at the beginning or the end of the
    statement: the last one, which need not be the one that took the lock.
    """
    texts = [connection.application or "", *_comments(connection.statement or "")]
    found = (_LINE.search(text) for text in texts)
    return next((line.group() for line in found if line is not None), None)


def _comments(statement: str) -> Iterator[str]:
    """Yield the comments before and behind a statement, where programs write who has sent it.

    One within may be a part of a value.
    """
    text = statement.strip().rstrip("; \n")
    ends = (
        text[: text.find("*/")] if text.startswith("/*") else "",
        text[text.rfind("/*") : -2] if text.endswith("*/") else "",
    )
    for comment in ends:
        words = comment.removeprefix("/*").lstrip()
        if not words.startswith(KEY_MARK):
            yield words[:_LONGEST_COMMENT]
