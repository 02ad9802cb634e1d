"""The pages, split into blocks.

A block is the text between two fences, or hidden in a comment that begins with ``<!-- python``.
A comment before a block may add instructions::

    <!-- name: models -->     other blocks can refer to this block
    <!-- needs: models -->    the named block runs first, wherever it stands
    <!-- name: output of models -->    the output of that block, run as a program
    <!-- name: shop.py -->    a file: tests/docs/test_examples.py or test_examples.py writes it and runs pytest

A line ``*Not run by the tests: ...*`` before a block explains why it does not run.  Readers see it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
LANGUAGES = frozenset({"python", "sh", "sql", "text", "toml"})

_FENCE = re.compile(r"^```(.*)$")
_DIRECTIVE = re.compile(r"^<!-- (name|needs): (\S.*?) -->$")
_NOT_RUN = re.compile(r"^\*Not run by the tests: \S.*\*$")
_HIDDEN, _HIDDEN_END = "<!-- python", "-->"
_GENERATED, _GENERATED_END = "<!-- generated: ", "<!-- end -->"
_GENERATED_PART = re.compile(
    rf"(^{_GENERATED}(\S+) -->\n)(.*?)(^{_GENERATED_END}$)", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A block of lines in a language other than English."""

    page: str
    line: int  # of the first line of its text, 1-based
    language: str
    text: str
    name: str | None = None
    needs: str | None = None
    not_run: bool = False
    generated: bool = False

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_file(self) -> bool:
        """True for a block that the reader saves under its name."""
        return self.name is not None and self.name.endswith(".py")


def pages() -> list[str]:
    """Return the pages in the root of the checkout and all of docs/, as paths from the root."""
    docs = sorted((ROOT / "docs").rglob("*.md"))
    return [*ROOT_PAGES, *(path.relative_to(ROOT).as_posix() for path in docs)]


def text_of(page: str) -> str:
    """Return the page as it is on disk."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(page: str) -> list[Block]:
    """Split the page into its blocks, in order."""
    return list(_cut(page, text_of(page).splitlines()))


def _cut(page: str, lines: list[str]) -> Iterator[Block]:
    directives: dict[str, str] = {}
    before, generated, position = "", False, 0
    while position < len(lines):
        line = lines[position]
        if fence := _FENCE.match(line):
            end = lines.index("```", position + 1)
            not_run = _NOT_RUN.match(before) is not None
            text = "\n".join(lines[position + 1 : end])
            yield Block(
                page,
                position + 2,
                fence[1],
                text,
                directives.get("name"),
                directives.get("needs"),
                not_run,
                generated,
            )
            directives, before, position = {}, "", end
        elif line == _HIDDEN:
            end = lines.index(_HIDDEN_END, position + 1)
            text = "\n".join(lines[position + 1 : end])
            names = directives.get("name"), directives.get("needs")
            yield Block(page, position + 2, "python", text, *names)
            directives, before, position = {}, "", end
        elif directive := _DIRECTIVE.match(line):
            directives[directive[1]] = directive[2]
        elif line.startswith((_GENERATED, _GENERATED_END)):
            generated = line != _GENERATED_END
        elif line.strip():
            before = line
        position += 1


def generated_parts(page: str) -> dict[str, str]:
    """Return the generated parts of the page by name, as they are on disk."""
    return {match[2]: match[3] for match in _GENERATED_PART.finditer(text_of(page))}


def with_generated_parts(page: str, parts: Mapping[str, str]) -> str:
    """Return the text of the page with these parts inserted at their markers."""
    return _GENERATED_PART.sub(
        lambda match: f"{match[1]}{parts[match[2]]}{match[4]}", text_of(page)
    )


def headings(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    found = re.findall(r"^#+ (.+)$", _without_fences(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def links(text: str) -> list[str]:
    """Return the targets of the links in a page."""
    return re.findall(r"\]\(([^)\s]+)\)", _without_fences(text))


def _without_fences(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
