"""A plugin of pytest: what tests use of SQLAlchemy, and its first releases of 2.0 do not have yet."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import Session


def _get_one(session: Any, entity: Any, ident: Any, **options: Any) -> Any:
    found = session.get(entity, ident, **options)
    if found is None:
        raise NoResultFound
    return found


if not hasattr(Session, "get_one"):  # since 2.0.22
    Session.get_one = _get_one  # type: ignore[method-assign,assignment]
