"""A document with everything that belongs to it, as plain values."""

from __future__ import annotations

from typing import Any

from tests.integration.documents.hierarchies import (
    Bit,
    Contract,
    Drill,
    Lease,
    Penalty,
    Plate,
    Press,
)
from tests.integration.documents.loading import Basket, Bill, Corner, Folder, Fruit, Item, Puzzle
from tests.integration.documents.models import (
    Base,
    Category,
    Entry,
    Job,
    Journal,
    Line,
    Order,
    Task,
)
from tests.integration.documents.relationships import Album, Label, Playlist, Track

#: What is read of each class, in this order; written down here, not asked of the library.
_PARTS: dict[type[Base], list[str]] = {
    Order: ["lines"],
    Line: ["taxes"],
    Journal: ["entries"],
    Entry: ["splits"],
    Contract: ["clauses"],
    Lease: ["clauses", "rooms"],
    Penalty: ["tiers"],
    Press: ["units"],
    Drill: ["units"],
    Plate: ["marks"],
    Bit: ["marks"],
    Job: ["tasks"],
    Task: ["subtasks", "notes"],
    Category: ["children", "goods"],
    Album: ["cover", "label", "tags", "marks", "texts", "codes", "open_issues"],
    Label: ["stickers"],
    Playlist: ["tracks", "top_badges"],
    Track: ["badges"],
    Bill: ["items"],
    Item: ["notes"],
    Puzzle: ["pieces"],
    Corner: ["hints"],
    Basket: ["fruits", "nuts"],
    Fruit: ["seeds"],
    Folder: ["sheets"],
}


def whole(thing: Any) -> Any:
    """Return the number of a row, with its parts if its class has any: ``(30, [10, 20])``.

    A set comes sorted, and a dict as it is.
    """
    if thing is None:
        return None
    if isinstance(thing, dict):
        return {key: whole(one) for key, one in thing.items()}
    if isinstance(thing, set):
        return {whole(one) for one in thing}
    if isinstance(thing, list):
        return [whole(one) for one in thing]
    number = thing.total if hasattr(thing, "total") else thing.value
    parts = _PARTS.get(type(thing), [])
    return (number, *(whole(getattr(thing, name)) for name in parts)) if parts else number
