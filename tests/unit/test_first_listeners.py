"""Listeners of ours on a dialect come before those of the program, of whichever time and class they are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import OperationalError

from sa_doclock.sqlalchemy_internals import allow_listening, insert_listener, listen_first


def test_they_are_called_first() -> None:
    called: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *_: called.append(name)

    engine, of_class = create_engine("sqlite://"), note("of the class")
    event.listen(Engine, "handle_error", of_class)
    try:
        for name in ("handle_error", "do_execute_no_params"):
            event.listen(engine, name, note(f"{name} before"))
            allow_listening([engine.dialect], name)
        listen_first(engine.dialect, "handle_error", note("ours, of an error"))
        insert_listener(engine.dialect, "do_execute_no_params", note("ours"))
        event.listen(engine, "handle_error", note("handle_error later"))
        with engine.connect() as connection, suppress(OperationalError):
            options: Any = {"no_parameters": True}
            connection.execution_options(**options).exec_driver_sql("SELECT nothing")
    finally:
        event.remove(Engine, "handle_error", of_class)
    assert called == [
        *("ours", "do_execute_no_params before"),
        *("ours, of an error", "of the class", "handle_error before", "handle_error later"),
    ]
