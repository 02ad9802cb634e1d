"""The objects that a session has in memory, looked at without loading anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import Session

from tests.reliability.model_based.docs import Doc
from tests.reliability.model_based.world import Line, Order, Tax


def disagreements(session: Session, views: Mapping[int, Doc | None]) -> Iterator[str]:
    """Yield the loaded attributes of these documents that are not as they should be."""
    for number, view in views.items():
        assert view is not None
        yield from _of_object(session, Order, number, total=view.total, lines=set(view.lines))
        for line, value in view.lines.items():
            taxes = {tax for tax, (at, _) in view.taxes.items() if at == line}
            yield from _of_object(session, Line, line, value=value, order=number, taxes=taxes)
        for tax, (line, value) in view.taxes.items():
            yield from _of_object(session, Tax, tax, value=value, line=line)


def _of_object(session: Session, entity: Any, ident: int, **expected: object) -> Iterator[str]:
    instance = session.identity_map.get(session.identity_key(entity, ident))
    loaded = {} if instance is None else inspect(instance).dict
    for name, value in expected.items():
        if name in loaded and (found := _plain(loaded[name])) != value:
            yield f"{entity.__name__} {ident}: {name} is {found}, should be {value}"


def _plain(value: Any) -> object:
    if isinstance(value, list):
        return {one.id for one in value}
    return value.id if isinstance(value, (Order, Line)) else value


Unsaved = set[tuple[object, ...]]


def unsaved(session: Session) -> Unsaved:
    """The pending changes: of each object and attribute, what was set, added and removed."""
    found: Unsaved = set()
    for instance in [*session.new, *session.dirty, *session.deleted]:
        whose = _named(instance)
        for attribute in inspect(instance).attrs:
            history, name = attribute.history, attribute.key
            removed = history.deleted if name in ("lines", "taxes") else ()
            found |= {(*whose, name, "added", _of(value)) for value in history.added or ()}
            found |= {(*whose, name, "removed", _of(value)) for value in removed or ()}
    return found


def _of(value: Any) -> str:
    return " ".join(map(str, _named(value)))


def _named(value: Any) -> tuple[str, object]:
    state = inspect(value, raiseerr=False)
    if state is None:
        return type(value).__name__, value
    return type(value).__name__, state.identity[0] if state.identity else value.id
