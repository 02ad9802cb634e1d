"""The choice between the newest and the oldest of the servers that can be unpacked here."""

from __future__ import annotations

import os


def oldest_wanted() -> bool:
    """Tell whether ``SA_DOCLOCK_TEST_SERVERS`` asks for the oldest versions."""
    wanted = os.environ.get("SA_DOCLOCK_TEST_SERVERS", "newest")
    if wanted not in {"newest", "oldest"}:
        msg = f"SA_DOCLOCK_TEST_SERVERS is {wanted!r}; it can be 'newest' or 'oldest'"
        raise ValueError(msg)
    return wanted == "oldest"
