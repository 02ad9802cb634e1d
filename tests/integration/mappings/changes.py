"""The changes that another session makes while a lock is waited for, and the one under the lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.integration.mappings.mapped_document import MappedDocument

#: The details of the document that is waited for, and of another one.
FIRST, SECOND = (10, 20, 40), (100, 200)

Change = Callable[[MappedDocument, Any, Any], None]
"""Is given how the documents are mapped, and both headers."""


def change_header(mapping: MappedDocument, first: Any, _second: Any) -> None:
    mapping.touch(first)


def add_detail(mapping: MappedDocument, first: Any, _second: Any) -> None:
    mapping.add(first, 5)
    first.total += 5


def change_details(mapping: MappedDocument, first: Any, _second: Any) -> None:
    """Change details alone: the header's row stays as it is."""
    mapping.change(first, 10, 13)
    mapping.change(first, 20, 17)
    mapping.touch_parts(first)


def remove_detail(mapping: MappedDocument, first: Any, _second: Any) -> None:
    mapping.remove(first, 20)
    first.total -= 20


def move_away(mapping: MappedDocument, first: Any, second: Any) -> None:
    mapping.move(first, second, 40)
    first.total -= 40
    second.total += 40


def move_here(mapping: MappedDocument, first: Any, second: Any) -> None:
    mapping.move(second, first, 100)
    second.total -= 100
    first.total += 100


CHANGES: Mapping[str, Change] = {
    "the header changes": change_header,
    "a detail is added": add_detail,
    "details change": change_details,
    "a detail is removed": remove_detail,
    "a detail moves away": move_away,
    "a detail moves here": move_here,
}


def write_own(mapping: MappedDocument, header: Any) -> None:
    """Change the document under the lock."""
    mapping.add(header, 1)
    header.total += 1
    mapping.touch(header)
