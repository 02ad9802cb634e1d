"""The choice between the newest and the oldest servers that can be unpacked here."""

from __future__ import annotations

import os


def oldest_wanted() -> bool:
    """Return whether ``SA_DOCLOCK_TEST_SERVERS`` requests the oldest versions."""
    wanted = os.environ.get("SA_DOCLOCK_TEST_SERVERS", "newest")
    if wanted not in {"newest", "oldest"}:
        msg = f"SA_DOCLOCK_TEST_SERVERS is {wanted!r}; it can be 'newest' or 'oldest'"
        raise ValueError(msg)
    return wanted == "oldest"
