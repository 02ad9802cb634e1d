"""The rows with which each test begins, and a document with all its parts as plain values."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tests.integration.documents.hierarchies import (
    Album,
    Badge,
    Bit,
    BitMark,
    Clause,
    Code,
    Contract,
    Cover,
    Drill,
    Issue,
    Label,
    Lease,
    Machine,
    Mark,
    Penalty,
    Plate,
    PlateMark,
    Playlist,
    Press,
    Room,
    Sticker,
    Tag,
    Text,
    Tier,
    Track,
    album_tag,
    playlist_badge,
    track_badge,
)
from tests.integration.documents.loading import (
    Basket,
    Bill,
    Client,
    Corner,
    Event,
    Folder,
    Fruit,
    Hint,
    Invoice,
    Item,
    ItemNote,
    Nut,
    Parcel,
    Piece,
    Puzzle,
    Scan,
    Seed,
    Sheet,
    Stamp,
)
from tests.integration.documents.models import (
    Base,
    Category,
    Entry,
    Good,
    Job,
    Journal,
    Line,
    Note,
    Order,
    Plan,
    Rate,
    Remark,
    Split,
    Step,
    Task,
    Tax,
)
from tests.support.refill import Refill

# --------------------------------------------------------------------------------------------------
# The initial rows of each test: documents 1 and 2 of most kinds.


def many(names: str, *rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [dict(zip(names.split(), row, strict=True)) for row in rows]


_ROWS: dict[type[Base] | sa.Table, list[dict[str, Any]]] = {
    Order: many("id total", (1, 30), (2, 5)),
    Line: many("id order_id value", (1, 1, 10), (2, 1, 20), (3, 2, 5)),
    Rate: many("id value", (1, 19)),
    Tax: many(
        "id line_id value rate_id", (1, 1, 6, 1), (2, 1, 4, None), (3, 2, 20, 1), (4, 3, 5, None)
    ),
    Journal: many("year number total", (2024, 1, 30), (2024, 2, 5), (1, 2024, 9)),
    Entry: many(
        "year number position value",
        *((2024, 1, 1, 10), (2024, 1, 2, 20), (2024, 2, 1, 5), (1, 2024, 1, 9)),
    ),
    Split: many(
        "id year number position value",
        *((1, 2024, 1, 1, 4), (2, 2024, 1, 1, 6), (3, 2024, 1, 2, 20), (4, 2024, 2, 1, 5)),
        (5, 1, 2024, 1, 9),
    ),
    Contract: many("id kind total", (1, "lease", 30), (2, "contract", 5)),
    Lease: many("id rent", (1, 500)),
    Clause: many(
        "id kind contract_id value",
        *((1, "penalty", 1, 10), (2, "clause", 1, 20), (3, "penalty", 2, 5)),
    ),
    Penalty: many("id amount", (1, 100), (3, 300)),
    Tier: many("id penalty_id value", (1, 1, 4), (2, 1, 6), (3, 3, 5)),
    Room: many("id lease_id value", (1, 1, 30)),
    Machine: many("id kind total", (1, "press", 30), (2, "drill", 5), (3, "machine", 0)),
    Plate: many("id machine_id value", (1, 1, 30)),
    Bit: many("id drill_id value", (1, 2, 5)),
    PlateMark: many("id plate_id value", (1, 1, 30)),
    BitMark: many("id bit_id value", (1, 1, 5)),
    Job: many("id total", (1, 30), (2, 5)),
    Task: many(
        "id job_id parent_id value",
        *((1, 1, None, 10), (2, None, 1, 11), (3, None, 2, 12), (4, None, 3, 13)),
        *((5, 1, None, 20), (6, None, 5, 21), (7, 2, None, 5)),
    ),
    Note: many("id task_id value", (1, 1, 10), (2, 4, 13), (3, 6, 21), (4, 7, 5)),
    Plan: many("id total", (1, 30)),
    Step: many("id plan_id parent_id", (1, 1, None), (2, None, 1), (3, None, 2)),
    Remark: many("id step_id value", (1, 1, 1), (2, 2, 2), (3, 3, 3)),
    Category: many(
        "id parent_id total", (1, None, 30), (2, 1, 31), (3, 2, 32), (4, 3, 33), (5, None, 5)
    ),
    Good: many("id category_id value", (1, 1, 30), (2, 4, 33), (3, 5, 5)),
    Label: many("id value", (1, 7)),
    Sticker: many("id label_id value", (1, 1, 70), (2, 1, 71)),
    Album: many("id code total label_id", (1, "A", 30, 1), (2, "B", 5, 1), (3, "C", 0, None)),
    Cover: many("id album_id value", (1, 1, 30)),
    Tag: many("id value", (1, 1), (2, 2), (3, 3)),
    album_tag: many(
        "album_id tag_id position", (1, 1, 3), (1, 2, 1), (1, 3, 2), (2, 1, 1), (2, 2, 2)
    ),
    Mark: many("id album_id value", (1, 1, 10), (2, 1, 20), (3, 2, 5)),
    Text: many("id album_id language value", (1, 1, "en", 10), (2, 1, "de", 20), (3, 2, "en", 5)),
    Code: many("id album_code value", (1, "A", 10), (2, "A", 20), (3, "B", 5)),
    Issue: many(
        "id album_id state value", (1, 1, "open", 10), (2, 1, "shut", 20), (3, 2, "open", 5)
    ),
    Playlist: many("id total", (1, 30), (2, 5)),
    Track: many("id playlist_id value", (1, 1, 10), (2, 1, 20), (3, 2, 5)),
    Badge: many("id value", (1, 1), (2, 2), (3, 3)),
    playlist_badge: many("playlist_id badge_id position", (1, 1, 1), (1, 2, 2), (1, 3, 3)),
    track_badge: many(
        "track_id badge_id position", (1, 1, 2), (1, 2, 1), (2, 1, 1), (2, 2, 2), (3, 1, 1)
    ),
    Bill: many("id total", (1, 30), (2, 5)),
    Item: many("id bill_id value", (1, 1, 10), (2, 1, 20), (3, 2, 5)),
    ItemNote: many("id item_id value", (1, 1, 10), (2, 2, 20), (3, 3, 5)),
    Puzzle: many("id total", (1, 30)),
    Piece: many("id kind puzzle_id value", (1, "corner", 1, 10), (2, "piece", 1, 20)),
    Hint: many("id piece_id value", (1, 1, 10)),
    Parcel: many("id total", (1, 30)),
    Scan: many("id parcel_id value", (1, 1, 10), (2, 1, 20)),
    Event: many("id parcel_id value", (1, 1, 10), (2, 1, 20)),
    Basket: many("id total", (1, 30), (2, 5)),
    Fruit: many("id basket_id value", (1, 1, 10), (2, 1, 20), (3, 2, 5)),
    Seed: many("id fruit_id value", (1, 1, 10), (2, 2, 20), (3, 3, 5)),
    Nut: many("id basket_id value", (1, 1, 30)),
    Client: many("id total", (1, 30)),
    Invoice: many("id client_id total", (1, 1, 30), (2, 1, 5)),
    Folder: many("id total", (1, 30), (2, 0)),
    Sheet: many("id folder_id value", (1, 1, 10), (2, 1, 20)),
    Stamp: many("id sheet_id value", (1, 1, 10), (2, 2, 20)),
}


def table_of(entity: type[Base] | sa.Table) -> sa.Table:
    """Return the table with a class's own columns."""
    return entity if isinstance(entity, sa.Table) else Base.metadata.tables[entity.__tablename__]


refill = Refill(
    Base.metadata,
    {table_of(entity): rows for entity, rows in _ROWS.items()},
    # InnoDB checks the keys of a tree row by row.
    first=[table_of(one).update().values(parent_id=None) for one in (Task, Category, Step)],
)


# --------------------------------------------------------------------------------------------------
# A document and all its parts, as plain values.

#: The parts read of each class, in this order; written down here, independent of the library.
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
    """Return a row's number, with its parts if its class has any: ``(30, [10, 20])``.

    A set is returned sorted, a dict unchanged.
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
