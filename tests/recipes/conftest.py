"""The program of a recipe as a module, on the database of the test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from sqlalchemy.orm import DeclarativeBase

from tests.docs.pages import blocks_of
from tests.support.databases import Database

CALL = "create_engine("
Recipe = Callable[..., Any]
OPTIONS: dict[str, dict[str, Any]] = {
    "sqlite": {"connect_args": {"timeout": 60}},  # the default, 5 s, is short if busy
    "mysql": {"isolation_level": "READ COMMITTED"},
    "mariadb": {"isolation_level": "READ COMMITTED"},
}


def text_of_program(page: str) -> str:
    """Return the program of a recipe from its page."""
    (program,) = (b for b in blocks_of(f"docs/recipes/{page}.md") if b.name == "program")
    return program.text


@pytest.fixture
def recipe(database: Database) -> Iterator[Recipe]:
    """Return a function that loads the program of a page as a module; its tables exist, empty.

    The pairs of texts replace parts of the program, for example a lock by a plain read.
    """
    made: list[str] = []

    def load(page: str, *changes: tuple[str, str]) -> ModuleType:
        text = text_of_program(page)
        for old, new in changes:
            assert old in text, f"the program of {page} has no {old!r}"
            text = text.replace(old, new)
        module = ModuleType(f"recipe_{page.replace('-', '_')}_{len(made)}")
        sys.modules[module.__name__] = module
        made.append(module.__name__)
        options = OPTIONS.get(database.name, {})
        engines = [database.engine(pool_size=20, **options) for _ in range(text.count(CALL))]
        with mock.patch("sqlalchemy.create_engine", side_effect=engines):
            exec(compile(text, page, "exec", dont_inherit=True), vars(module))
        for value in list(vars(module).values()):
            if isinstance(value, type) and DeclarativeBase in value.__bases__:
                database.create(value.metadata)  # type: ignore[attr-defined]
        return module

    yield load
    for name in made:
        del sys.modules[name]
