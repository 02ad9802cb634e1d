"""Checks the T-SQL that a test sends to a real SQL Server, including the ORM's, with the parser too.

A server reports some errors of a statement only if a row exists; the parser needs no row.
"""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest
from sqlalchemy import Engine, event

from lab.servers.model import UnavailableError
from lab.tsql.checker import Checker, checking
from lab.tsql.texts import with_parameters
from lab.tsql.wheels import unpacked


class SentStatements:
    """The statements sent through the watched engines."""

    def __init__(self) -> None:
        self._sent: dict[str, None] = {}  # in the order of sending, each once

    def watch(self, engine: Engine) -> None:
        """Record what this engine sends from now on."""
        event.listen(engine, "before_cursor_execute", self._note)

    def check(self) -> None:
        """Fail with each statement that is not valid T-SQL; pass on a machine without the parser."""
        checker = _checker()
        if checker is None:
            return
        sent = list(self._sent)
        verdicts = checker.check([with_parameters(text) for text in sent])
        wrong = [
            f"{'; '.join(verdict.syntax + verdict.rules)}\n{text}"
            for text, verdict in zip(sent, verdicts, strict=True)
            if not verdict
        ]
        if wrong:
            pytest.fail("\n\n".join(["this is no good T-SQL:", *wrong]), pytrace=False)

    def _note(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        self._sent[statement] = None


@cache
def _checker() -> Checker | None:
    """Return this process's parser; None if it is unavailable, which test_sent.py reports."""
    try:
        folder = unpacked()
    except UnavailableError:
        return None
    running = ExitStack()
    atexit.register(running.close)
    return running.enter_context(checking(folder))
