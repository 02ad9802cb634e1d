"""The stages of a transaction of gate.run(), at each of which something may come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

STAGES = ("lock", "function", "flush", "commit", "answer")


class Stage:
    """Acts once, when a transaction comes to this stage.

    The act comes before the lock is asked for, in a function between its change and its query, before
    the flush, before COMMIT is sent, or after it, when nobody has an answer.

    :ivar is_due: it acts from now on.
    """

    def __init__(
        self, name: str, engine: sa.Engine, sessions: Any, act: Callable[[], object]
    ) -> None:
        assert name in STAGES
        self.is_due, self._name, self._act = True, name, act
        if name == "lock":
            sa.event.listen(engine, "before_cursor_execute", self._before_lock)
        if name == "commit":
            sa.event.listen(engine, "commit", self._come)
        if name in ("flush", "answer"):
            event = "before_flush" if name == "flush" else "after_commit"
            sa.event.listen(sessions, event, self._come)

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, in which the act comes if that is its stage."""

        def come(session: Any, document: Any) -> Any:
            result = function(session, document)
            if self._name == "function" and self.is_due:
                self._come()
                session.execute(sa.select(sa.literal(1)))
            return result

        return come

    def _before_lock(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "lk_order" in statement and statement.startswith("SELECT"):
            self._come()

    def _come(self, *_: Any) -> None:
        if self.is_due:
            self.is_due = False
            self._act()
