"""The findings as one HTML page that runs no script and loads nothing."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Final

from sa_doclock.errors import DOCS
from sa_doclock.testing.instruments import printable

from .findings import CODES, AuditFinding
from .paths import Paths
from .stories import FIRST, story_of

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1f24; background: #fff }
section { border-top: 1px solid #d0d7de; padding: 1rem 0 }
h2 { font-size: 1.15rem; margin: 0 0 .5rem }
.error, .warning { border-radius: .3rem; padding: .1rem .5rem; color: #fff; font-size: .85rem }
.error { background: #b42318 } .warning { background: #8a5a00 }
pre, code { font: 14px/1.5 ui-monospace, monospace }
pre { background: #f6f8fa; padding: .7rem; overflow-x: auto; white-space: pre-wrap }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
th, td { border: 1px solid #d0d7de; padding: .3rem .6rem; text-align: left; vertical-align: top; width: 50% }
li { overflow-wrap: anywhere } .of-tests { color: #57606a }
"""

_HEAD: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>Where the program needs a lock</title>
<style>{style}</style>
</head>
<body>
<h1>Where the program needs a lock</h1>
"""


def html_of(findings: Sequence[AuditFinding], summary: Sequence[str], paths: Paths) -> str:
    """Return the page.  It escapes every text from outside this module, because it may come from data.

    :param summary: lines for the end of the page.
    """
    parts = [_HEAD.format(style=_STYLE)]
    if findings:
        entries = (
            f'<li><a href="#f{number}">{_text(one.severity)}: {_text(CODES.get(one.code, one.code))}</a></li>'
            for number, one in enumerate(findings, 1)
        )
        parts += ["<ol>", *entries, "</ol>"]
    for number, finding in enumerate(findings, 1):
        parts += _section(number, finding, paths)
    parts += [f"<pre>{_text(chr(10).join(summary))}</pre>", "</body>", "</html>", ""]
    return "\n".join(parts)


def _text(text: str) -> str:
    return "\n".join(escape(printable(line)) for line in text.split("\n"))


def _section(number: int, finding: AuditFinding, paths: Paths) -> Iterator[str]:
    page = f"{DOCS}/audit.html#{finding.code}"
    times = "once" if finding.count == 1 else f"{finding.count} times"
    yield f'<section id="f{number}">'
    yield (
        f'<h2><span class="{_text(finding.severity)}">{_text(finding.severity)}</span> '
        f'<a href="{escape(page)}">{_text(finding.code)}</a>, seen {times}</h2>'
    )
    yield f"<p>{_text(paths.text(finding.message, finding.sites))}.</p>"
    yield from _lines("The lines", finding.sites, lambda site: _line(site, paths))
    yield from _lines("Called from", finding.callers, lambda site: _line(site, paths))
    yield from _lines("In the tests", finding.tests, lambda test: f"<code>{_text(test)}</code>")
    yield from _story(finding, paths)
    yield f"<p>The cure:</p><pre>{_text(paths.text(finding.cure, finding.sites))}</pre>"
    yield "</section>"


def _lines(title: str, lines: Sequence[str], show: Callable[[str], str]) -> Iterator[str]:
    if lines:
        yield f"<p>{title}:</p><ul>{''.join(f'<li>{show(one)}</li>' for one in lines)}</ul>"


def _line(site: str, paths: Paths) -> str:
    file, _, number = site.rpartition(":")
    source = linecache.getline(file, int(number)).strip() if number.isdecimal() else ""
    of_tests = ' class="of-tests"' if paths.is_of_tests(site) else ""
    return f"<code{of_tests}>{_text(paths.site(site))}</code> <code>{_text(source)}</code>"


def _story(finding: AuditFinding, paths: Paths) -> Iterator[str]:
    steps = story_of(finding.code, [paths.site(one) for one in finding.sites])
    if steps:
        rows = (
            f"<tr><td>{_text(text)}</td><td></td></tr>"
            if who == FIRST
            else f"<tr><td></td><td>{_text(text)}</td></tr>"
            for who, text in steps
        )
        yield "<p>Two concurrent transactions:</p>"
        yield f"<table><tr><th>first</th><th>second</th></tr>{''.join(rows)}</table>"
