"""One page of results, in Markdown, to attach to an issue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A section of the page.

    :ivar holds: whether the part showed the expected behaviour; None: it only states facts.
    """

    title: str
    lines: Sequence[str]
    holds: bool | None = None


Make = Callable[[], Part]


def made(title: str, make: Make) -> Part:
    """Return the part; if making it fails, a part that gives the reason and does not hold."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001  # keep the other parts
        reported = " ".join(str(error).split())
        return Part(title, [f"Could not be run: {type(error).__name__}: {reported}"], holds=False)


def page(title: str, parts: Sequence[Part], secrets: Sequence[str] = ()) -> str:
    """Return the page, with these secrets removed."""
    text = "\n".join(_lines(title, parts)) + "\n"
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text


def failed(parts: Sequence[Part]) -> list[str]:
    """Return the titles of the parts that do not hold."""
    return [part.title for part in parts if part.holds is False]


def table(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Yield a table whose head has the keys of the first row."""
    if rows:
        yield f"| {' | '.join(rows[0])} |"
        yield "|" + "---|" * len(rows[0])
    for row in rows:
        cells = (str(value).replace("|", "\\|").replace("\n", " ") for value in row.values())
        yield f"| {' | '.join(cells)} |"


def _lines(title: str, parts: Sequence[Part]) -> Iterator[str]:
    yield f"# {title}"
    yield ""
    broken = failed(parts)
    yield f"**Does not hold: {', '.join(broken)}.**" if broken else "**Everything holds.**"
    for part in parts:
        yield ""
        yield f"## {part.title}"
        yield ""
        yield from part.lines
