"""The table of docs/compatible-servers.md, from the table of the dialects."""

from __future__ import annotations

from collections.abc import Iterator

from sa_doclock.dialects import COMPATIBLE_SERVERS, LockFeature
from sa_doclock.dialects.compatible_servers import CompatibleServer, Fact

from .compatible_facts import DOCUMENTED, NOTES, RUN, UNTOLD

_ORIGINALS = {"postgresql": "PostgreSQL", "mysql": "MySQL", "mssql": "SQL Server"}


def sections() -> Iterator[str]:
    """Yield a section for each product that has facts, and one line for the others."""
    without: list[CompatibleServer] = []
    for product in COMPATIBLE_SERVERS:
        if product.refused or product.name in DOCUMENTED or product.name in NOTES:
            yield from _section(product)
        else:
            without.append(product)
    yield "## Others"
    yield ""
    yield "Without known facts, sa_doclock treats these products as the original, by their protocol:"
    yield ""
    for protocol, original in _ORIGINALS.items():
        told = [product.name for product in without if product.protocol == protocol]
        untold = [f"{name} (not known by its version)" for name in UNTOLD.get(protocol, ())]
        if told or untold:
            yield f"- {original}: {', '.join((*told, *untold))}."
    yield ""


def _section(product: CompatibleServer) -> Iterator[str]:
    yield f"## {product.name}"
    yield ""
    yield f"Answers as {_ORIGINALS[product.protocol]}."
    yield ""
    yield "| | | | by |"
    yield "|---|---|---|---|"
    known = {*product.refused, *DOCUMENTED.get(product.name, {})}
    for feature in LockFeature:
        if feature in known:
            yield _row(feature, product)
    if others := ", ".join(feature.value for feature in LockFeature if feature not in known):
        yield f"| {others} | not run | | {', '.join(_evidence(product, None))} |"
    yield ""
    notes = NOTES.get(product.name, ())
    for note in notes:
        yield f"- {note[0].upper()}{note[1:]}."
    if notes:
        yield ""


def _row(feature: LockFeature, product: CompatibleServer) -> str:
    refused, sent = product.refused.get(feature), DOCUMENTED.get(product.name, {}).get(feature)
    evidence = ", ".join(_evidence(product, refused or sent))
    if refused is not None:
        below = f" below {'.'.join(map(str, refused.before))}" if refused.before else ""
        reason = f"{refused.text} [(source)]({refused.source})"
        return f"| {feature.value} | LockNotSupported{below} | {reason} | {evidence} |"
    assert sent is not None
    says = f"documented: {sent.text}" if sent.text else "documented"
    return f"| {feature.value} | not run | {says} [(source)]({sent.source}) | {evidence} |"


def _evidence(product: CompatibleServer, fact: Fact | None) -> Iterator[str]:
    """Yield the letters of what a row rests on; the page explains them."""
    yield "D"
    if fact is not None:
        if "/blob/" in fact.source:
            yield "C"
        else:
            yield "I" if fact.source.startswith("https://github.com/") else "M"
    if product.name in RUN:
        yield "R"
