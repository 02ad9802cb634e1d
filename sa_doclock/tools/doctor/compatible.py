"""The problem of a server that is another product than its protocol says."""

from __future__ import annotations

from ...dialects import FoundServer, LockFeature
from .check import Problem

_LONGEST = 80


def compatible_problem(found: FoundServer, original: str, version: str) -> Problem:
    """Return it, with the locks that are refused there.

    :param version: the text by which the server names its version.
    """
    refused = [feature.value for feature in LockFeature if found.refusal(feature)]
    text = f"the server is {found.product.name}, not {original}: {version[:_LONGEST]}"
    if refused:
        text += f"; LockNotSupported there: {', '.join(refused)}"
    return Problem(text, "run sa-doclock stress on it before you rely on its other locks")
