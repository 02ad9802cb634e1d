"""The keys that a process remembers for lock_waits(): the last ones, and no more."""

from __future__ import annotations

import pytest

from sa_doclock.dialects import recent_keys


def test_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_keys, "_KEPT", 2)
    monkeypatch.setattr(recent_keys, "_keys", {})
    for key in ("a", "b", "a", "c"):
        recent_keys.remember_key(key, f"shop.{key}")
    assert recent_keys.recent_keys() == {"shop.b": "b", "shop.c": "c"}
