"""The pictures of ``sa-doclock waits`` and ``doctor``: the output of the commands, in rich's own export.

``python -m tests.docs.pictures`` writes all pictures into docs/pictures: these, the time lines of
docs/pictures/timeline.py, and the picture of tests/docs/exclusion.py; tests/docs/test_tables.py compares.
"""

from __future__ import annotations

import io
import re
import runpy
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME

from sa_doclock import Finding, LockConnection, LockWait
from sa_doclock.tools.cli.doctor import print_report
from sa_doclock.tools.cli.wait_tree import picture_of
from tests.docs import exclusion
from tests.docs.pages import ROOT

FOLDER: Final = ROOT / "docs" / "pictures"
_SELECT = "SELECT orders.id, orders.total FROM orders WHERE orders.id = $1 FOR UPDATE OF orders"


def _connection(
    number: int, application: str, state: str, seconds: float, statement: str
) -> LockConnection:
    host = f"10.0.0.{number % 100}"
    return LockConnection(number, "app", application, state, seconds, statement, host=host)


def _waits() -> list[LockWait]:
    holder = _connection(
        4711, "billing", "idle in transaction", 92.5, "UPDATE orders SET total=$1 WHERE id = $2"
    )
    first = _connection(4712, "shop", "active", 31.0, _SELECT)
    second = _connection(4720, "shop", "active", 7.2, _SELECT)
    batch = _connection(
        4731, "import", "active", 2.0, "SELECT pg_advisory_xact_lock(CAST($1 AS bigint))"
    )
    return [
        LockWait(first, holder, holder, "orders", "42", 31.0),
        LockWait(second, first, holder, "orders", "42", 7.2),
        LockWait(batch, holder, holder, None, "import:prices", 2.0),
    ]


def _findings() -> list[Finding]:
    return [
        Finding(
            "error",
            "table-cannot-lock",
            "table 'audit' is stored by MyISAM, which has no row locks",
            "ALTER TABLE audit ENGINE=InnoDB;",
        ),
        Finding(
            "warning",
            "part-without-index",
            "order_lines has no index on (order_id), by which the parts of Order are found",
            "CREATE INDEX ix_order_lines_order_id ON order_lines (order_id);",
        ),
        Finding(
            "info",
            "innodb-log-deadlocks",
            "deadlocks are not in the server's log: innodb_print_all_deadlocks is OFF",
            "SET GLOBAL innodb_print_all_deadlocks = ON;",
        ),
    ]


def _print_doctor(out: Console) -> None:
    print_report(out, "mysql 9.7.0, mysql+pymysql://app:***@db/shop", _findings())


PICTURES: Final[Mapping[str, Callable[[Console], None]]] = {
    "waits": lambda out: out.print(picture_of(_waits(), out, everything=True)),
    "doctor": _print_doctor,
}


def svg_of(name: str) -> str:
    """Return the picture of a command."""
    out = Console(record=True, width=110, file=io.StringIO(), force_terminal=True, highlight=False)
    PICTURES[name](out)
    light, dark = (
        out.export_svg(
            title=f"sa-doclock {name}", theme=theme, clear=False, unique_id=f"doclock-{name}"
        )
        for theme in (DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME)
    )
    return _for_both_schemes(light, dark)


def _for_both_schemes(light: str, dark: str) -> str:
    """Return the light picture with the dark picture's colours for readers who prefer dark mode.

    It uses the reader's fonts: a page of the docs loads nothing from another server.
    """
    rules = re.findall(r"^ *(\.\S+-r\d+ \{.*\})$", dark, re.MULTILINE)
    rules += [
        f"{selector} {{ fill: {_fill(element, dark)} }}"
        for selector, element in (
            (".rich-terminal > rect", "rect"),
            (".rich-terminal > text", "text"),
        )
    ]
    style = "\n".join(
        [
            "    .rich-terminal > rect { stroke: rgba(128,128,128,0.5) }",
            "    @media (prefers-color-scheme: dark) {",
            *(f"      {rule}" for rule in rules),
            "    }\n    </style>",
        ]
    )
    light = re.sub(r"\n *@font-face \{.*?\n    \}", "", light, flags=re.DOTALL)
    return light.replace("    </style>", style, 1)


def _fill(element: str, svg: str) -> str:
    """Return the colour of the first such element after the definitions."""
    found = re.search(rf"</defs>.*?<{element} [^>]*?fill=\"([^\"]+)\"", svg, re.DOTALL)
    assert found is not None
    return found[1]


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.svg"


@cache
def _timeline() -> Mapping[str, Any]:
    return runpy.run_path(str(FOLDER / "timeline.py"))


def timelines() -> Mapping[str, Any]:
    """Return the time lines by name, as their script describes them."""
    found: Mapping[str, Any] = _timeline()["PICTURES"]
    return found


def drawn(name: str) -> str:
    """Return the picture of a time line."""
    svg: str = _timeline()["draw"](name)
    return svg


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        path_of(name).write_text(svg_of(name), encoding="utf-8")
    for name in timelines():
        path_of(name).write_text(drawn(name), encoding="utf-8")
    exclusion.SVG.write_text(exclusion.draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
