"""The table of docs/api/README.md: every public name, with its version and its first sentence."""

from __future__ import annotations

import inspect
import json
import operator
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final

from sqlalchemy.orm import Session

import sa_doclock
import sa_doclock.events
import sa_doclock.testing
from sa_doclock import _RETURNED
from tests.docs.pages import ROOT, text_of

RETURNED: Final = _RETURNED
SINCE_FILE: Final = ROOT / "docs" / "site" / "since.json"
PAGES: Final = sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "api").glob("*.md")
)
_DIRECTIVE = re.compile(r"^::: sa_doclock\.(\S+)$", re.MULTILINE)


def since() -> Mapping[str, str]:
    """Return the version that each public name came with; a method as ``LockingSession.lock``."""
    versions: dict[str, list[str]] = json.loads(SINCE_FILE.read_text(encoding="utf-8"))
    return {name: version for version, names in versions.items() for name in names}


def public_names() -> list[str]:
    """Return the names that a user imports, the methods of LockingSession, and its events."""
    added = set(dir(sa_doclock.LockingSession)) - set(dir(Session))
    methods = sorted(f"LockingSession.{name}" for name in added if not name.startswith("_"))
    testing = [f"testing.{name}" for name in sa_doclock.testing.__all__]
    telemetry = ["opentelemetry.instrument", "opentelemetry.uninstrument"]
    events = ["events.LockEvents", "events.RequestedLock"]
    return [*sa_doclock.__all__, *RETURNED, *methods, *events, *testing, *telemetry]


def paths() -> Mapping[str, str]:
    """Return the page of the reference that describes each object, by its path in sa_doclock."""
    return {path: page for page in PAGES for path in _DIRECTIVE.findall(text_of(page))}


def public_name(path: str) -> str:
    """Return the name that a user imports; where its module has the same name, the path has both."""
    *modules, name = path.split(".")
    return name if name in RETURNED or modules[-1:] == [name] else path


def described() -> Mapping[str, str]:
    """Return the page of the reference that describes each name."""
    return {public_name(path): page for path, page in paths().items()}


def table() -> Iterator[str]:
    """Yield a row for each name."""
    yield "| Name | Since | |"
    yield "|---|---|---|"
    versions, pages = since(), described()
    import_module("sa_doclock.opentelemetry")  # here: the site is built without its extra
    for name in public_names():
        page = pages[name if name in pages else name.partition(".")[0]].rpartition("/")[2]
        yield f"| [`{name}`]({page}) | {versions[name]} | {_first_sentence(name)} |"


def _first_sentence(name: str) -> str:
    found = operator.attrgetter(name)(sa_doclock)
    text = " ".join((inspect.getdoc(found) or "").split())
    text = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text.replace("``", "`"))
    return re.split(r"(?<=[.])\s|:(?=\s|$)", text)[0].rstrip(".:") + "."
