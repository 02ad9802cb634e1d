"""Draws sessions on time lines: ``python docs/pictures/timeline.py`` writes the SVG files beside it.

Time goes down, one column for each session.  A picture is as wide as a telephone, so that its words are
never smaller than those of a caption.  Each has a text alternative, made from the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, ROW, BOX, TITLE, GAP = 400, 38, 30, 22, 18
STYLE = """
    svg { font: 13px system-ui, "DejaVu Sans", sans-serif; fill: #1f2328 }
    .title { font-weight: 600; font-size: 13.5px }
    .name { font-weight: 600 }
    .line { stroke: #8c959f; stroke-width: 1.5 }
    .box { fill: #ddf4ff; stroke: #0969da }
    .good { fill: #dafbe1; stroke: #1a7f37 }
    .wrong { fill: #ffebe9; stroke: #cf222e }
    .waits { fill: #fff8c5; stroke: #9a6700; stroke-dasharray: 4 3 }
    .free { fill: #f6f8fa; stroke: #8c959f; stroke-dasharray: 2 3 }
    @media (prefers-color-scheme: dark) {
      svg { fill: #e6edf3 } .line { stroke: #6e7681 } .free { fill: #161b22; stroke: #6e7681 }
      .box { fill: #0c2d6b; stroke: #4493f8 } .wrong { fill: #67060c; stroke: #f85149 }
      .waits { fill: #3d2e00; stroke: #d29922 } .good { fill: #033a16; stroke: #3fb950 }
    }
"""
COLUMN_NAMES = ("session A", "session B")


class Step(NamedTuple):
    """What a session does.

    :ivar session: the column.
    :ivar at: the row in which it begins.
    :ivar kind: the class of its box.
    :ivar rows: the number of rows that it takes.
    """

    session: int
    at: int
    text: str
    kind: str = "box"
    rows: int = 1


class Panel(NamedTuple):
    """A time line with its title."""

    title: str
    steps: Sequence[Step]
    names: Sequence[str] = COLUMN_NAMES


class Picture(NamedTuple):
    """Some time lines below each other."""

    title: str
    panels: Sequence[Panel]


PICTURES: Mapping[str, Picture] = {
    "lost-update": Picture(
        "Two sessions change one order at once",
        (
            Panel(
                "Without a lock: total 15, lines 10 + 5 + 5",
                (
                    Step(0, 0, "reads 10"),
                    Step(1, 1, "reads 10"),
                    Step(0, 2, "adds a line, 5"),
                    Step(0, 3, "total = 15, commits"),
                    Step(1, 4, "adds a line, 5"),
                    Step(1, 5, "total = 15, commits", "wrong"),
                ),
            ),
            Panel(
                "With locked(): the second session waits",
                (
                    Step(0, 0, "locks, reads 10"),
                    Step(1, 1, "waits for the lock", "waits", 2),
                    Step(0, 1, "adds a line, 5"),
                    Step(0, 2, "total = 15, commits"),
                    Step(1, 3, "locks, reads 15"),
                    Step(1, 4, "adds a line, 5"),
                    Step(1, 5, "total = 20, commits", "good"),
                ),
            ),
        ),
    ),
    "reader": Picture(
        "A session reads an order while another one changes it",
        (
            Panel(
                "Plain reads: a total and lines that do not match",
                (
                    Step(1, 0, "reads the total: 10"),
                    Step(0, 1, "adds a line, 5"),
                    Step(0, 2, "total = 15, commits"),
                    Step(1, 3, "reads the lines: 10 + 5", "wrong"),
                ),
                ("writer", "reader"),
            ),
            Panel(
                "SharedRead: the reader waits for the writer",
                (
                    Step(0, 0, "locks ForUpdate"),
                    Step(1, 1, "waits for the lock", "waits", 2),
                    Step(0, 1, "adds a line, 5"),
                    Step(0, 2, "total = 15, commits"),
                    Step(1, 3, "reads the total: 15"),
                    Step(1, 4, "reads the lines: 10 + 5", "good"),
                ),
                ("writer", "reader"),
            ),
            Panel(
                "SnapshotRead: no wait, and the old order",
                (
                    Step(0, 0, "locks ForUpdate"),
                    Step(1, 1, "reads the total: 10"),
                    Step(0, 2, "adds a line, 5"),
                    Step(0, 3, "total = 15, commits"),
                    Step(1, 4, "reads the lines: 10", "good"),
                ),
                ("writer", "reader"),
            ),
        ),
    ),
    "lock-order": Picture(
        "Two sessions lock orders 1 and 2",
        (
            Panel(
                "In different orders: a deadlock",
                (
                    Step(0, 0, "locks order 1"),
                    Step(1, 1, "locks order 2"),
                    Step(0, 2, "waits for order 2", "waits", 2),
                    Step(1, 3, "waits for order 1", "waits"),
                    Step(1, 4, "DeadlockDetected", "wrong"),
                    Step(0, 4, "locks order 2"),
                ),
            ),
            Panel(
                "get_entities(Order, [1, 2]): always in key order",
                (
                    Step(0, 0, "locks order 1"),
                    Step(1, 1, "waits for order 1", "waits", 2),
                    Step(0, 1, "locks order 2"),
                    Step(0, 2, "commits"),
                    Step(1, 3, "locks order 1"),
                    Step(1, 4, "locks order 2", "good"),
                ),
            ),
        ),
    ),
    "waiting": Picture(
        "Session A holds order 42, and session B wants it",
        (
            Panel(
                "ForUpdate: session B waits until A has ended",
                (
                    Step(0, 0, "locks order 42"),
                    Step(1, 1, "waits for the lock", "waits", 2),
                    Step(0, 2, "commits"),
                    Step(1, 3, "locks order 42", "good"),
                ),
            ),
            Panel(
                "ForUpdate, lock_timeout=2: for two seconds",
                (
                    Step(0, 0, "locks order 42"),
                    Step(1, 1, "waits for 2 seconds", "waits", 2),
                    Step(1, 3, "LockNotAvailable", "wrong"),
                    Step(0, 4, "commits"),
                ),
            ),
            Panel(
                "ForUpdate | NoWait: not at all",
                (
                    Step(0, 0, "locks order 42"),
                    Step(1, 1, "LockNotAvailable", "wrong"),
                    Step(0, 2, "commits"),
                ),
            ),
            Panel(
                "A set, ForUpdate | SkipLocked: the other rows",
                (
                    Step(0, 0, "locks order 42"),
                    Step(1, 1, "wants 41, 42 and 43"),
                    Step(1, 2, "locks 41 and 43", "good"),
                    Step(0, 3, "commits"),
                ),
            ),
        ),
    ),
    "claim-loop": Picture(
        "Two workers claim the rows 1, 2 and 3 by claim_each()",
        (
            Panel(
                "Each row goes to one worker",
                (
                    Step(0, 0, "reads keys: 1, 2, 3"),
                    Step(1, 1, "reads keys: 1, 2, 3"),
                    Step(0, 2, "locks 1, checks it"),
                    Step(1, 3, "1 is held: skips it", "waits"),
                    Step(1, 4, "locks 2, checks it"),
                    Step(0, 5, "commits row 1", "good"),
                    Step(0, 6, "2 is held: skips it", "waits"),
                    Step(0, 7, "locks 3, checks it"),
                    Step(1, 8, "commits row 2", "good"),
                    Step(1, 9, "3 is held: skips it", "waits"),
                    Step(0, 10, "commits row 3", "good"),
                ),
                ("worker A", "worker B"),
            ),
        ),
    ),
    "gate": Picture(
        "Three requests want order 42, one wants order 7; the pool has three connections",
        (
            Panel(
                "Without a gate: the waits fill the pool",
                (
                    Step(1, 0, "42: holds the lock"),
                    Step(1, 1, "42: waits", "waits"),
                    Step(1, 2, "42: waits", "waits"),
                    Step(0, 3, "7: waits for a connection", "wrong"),
                ),
                ("process", "connection pool"),
            ),
            Panel(
                "With gate=DocumentGate(): waits are outside",
                (
                    Step(0, 0, "42: waits at the gate", "waits"),
                    Step(0, 1, "42: waits at the gate", "waits"),
                    Step(1, 0, "42: holds the lock"),
                    Step(1, 1, "7: works", "good"),
                    Step(1, 2, "free", "free"),
                ),
                ("process", "connection pool"),
            ),
        ),
    ),
    "gate-run": Picture(
        "Three callers change the same document: by hand, and by gate.run()",
        (
            Panel(
                "By hand: one after the other",
                (
                    Step(0, 0, "A: lock, read, write"),
                    Step(1, 0, "COMMIT of A", "good"),
                    Step(0, 1, "B: lock, read, write"),
                    Step(1, 1, "COMMIT of B", "good"),
                    Step(0, 2, "C: lock, read, write"),
                    Step(1, 2, "COMMIT of C", "good"),
                ),
                ("caller", "database"),
            ),
            Panel(
                "With gate.run(): one flush for all",
                (
                    Step(0, 0, "A: lock, read"),
                    Step(0, 1, "functions of A, B, C"),
                    Step(0, 2, "one flush"),
                    Step(1, 2, "COMMIT of A, B, C", "good"),
                ),
                ("caller", "database"),
            ),
        ),
    ),
    "round-trips": Picture(
        "Round trips of get_document() and save_changes() on PostgreSQL",
        (
            Panel(
                "By default: six round trips",
                (
                    Step(0, 0, "1: BEGIN"),
                    Step(0, 1, "2: SELECT FOR UPDATE"),
                    Step(1, 1, "the lock is granted", "good"),
                    Step(0, 2, "3: SELECT lines"),
                    Step(0, 3, "4: UPDATE order"),
                    Step(0, 4, "5: UPDATE lines"),
                    Step(0, 5, "6: COMMIT"),
                    Step(1, 5, "the lock is released", "good"),
                ),
                ("session", "server"),
            ),
            Panel(
                "With pipeline=True: two round trips",
                (
                    Step(0, 0, "1: BEGIN"),
                    Step(0, 1, "1: SELECT FOR UPDATE"),
                    Step(0, 2, "1: SELECT lines"),
                    Step(1, 2, "the lock is granted", "good"),
                    Step(0, 3, "2: UPDATE order"),
                    Step(0, 4, "2: UPDATE lines"),
                    Step(0, 5, "2: COMMIT"),
                    Step(1, 5, "the lock is released", "good"),
                ),
                ("session", "server"),
            ),
        ),
    ),
}


def draw(name: str) -> str:
    """Return a picture as SVG, with its text alternative."""
    title, panels = PICTURES[name]
    shapes: list[str] = []
    top = 0
    for panel in panels:
        shapes += _shapes(top, panel)
        top += _height(panel)
    description = " ".join(f"{panel.title}. {'; '.join(_sentences(panel))}." for panel in panels)
    return document(title, description, top, shapes)


def document(
    title: str, description: str, height: int, shapes: Sequence[str], width: int = WIDTH
) -> str:
    """Return an SVG file of these shapes.

    :param description: the text alternative.
    """
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title desc"',
            f'     width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
            f'  <title id="title">{escape(title)}</title>',
            f'  <desc id="desc">{escape(description)}</desc>',
            f"  <style>{STYLE}  </style>",
            *shapes,
            "</svg>\n",
        ]
    )


def _sentences(panel: Panel) -> Iterator[str]:
    for step in sorted(panel.steps, key=lambda step: step.at):
        yield f"{panel.names[step.session]}: {step.text}"


def _last(panel: Panel) -> int:
    return max(step.at + step.rows for step in panel.steps)


def _height(panel: Panel) -> int:
    return 2 * TITLE + _last(panel) * ROW + GAP


def _shapes(top: int, panel: Panel) -> Iterator[str]:
    yield f'  <text class="title" x="4" y="{top + 16}">{escape(panel.title)}</text>'
    column = WIDTH / len(panel.names)
    first = top + 2 * TITLE
    for number, name in enumerate(panel.names):
        middle = column * (number + 0.5)
        yield (
            f'  <text class="name" x="{middle:g}" y="{top + TITLE + 15}" '
            f'text-anchor="middle">{escape(name)}</text>'
        )
        bottom = first + _last(panel) * ROW
        yield f'  <line class="line" x1="{middle:g}" y1="{first}" x2="{middle:g}" y2="{bottom}"/>'
    for step in panel.steps:
        x, y = column * step.session + 6, first + step.at * ROW + 4
        height = step.rows * ROW - (ROW - BOX)
        yield _box(x, y, column - 12, height, step.kind)
        yield (
            f'  <text x="{x + (column - 12) / 2:g}" y="{y + height / 2 + 4.5:g}" '
            f'text-anchor="middle">{escape(step.text)}</text>'
        )


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return (
        f'  <rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"/>'
    )


if __name__ == "__main__":
    for one in PICTURES:
        Path(__file__).with_name(f"{one}.svg").write_text(draw(one), encoding="utf-8")
