"""The keys that a process remembers for lock_waits(): the last ones, and no more."""

from __future__ import annotations

import pytest

from sa_doclock.dialects import named_locks


def test_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_locks, "_KEPT", 2)
    monkeypatch.setattr(named_locks, "_keys", {})
    for key in ("a", "b", "a", "c"):
        named_locks.remember_key(key, f"shop.{key}")
    assert named_locks.recent_keys() == {"shop.b": "b", "shop.c": "c"}


def test_they_take_little_memory_however_long_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_locks, "_keys", {})
    for number in range(3_000):
        for long in (f"{number:0255}", f"{number:0256}", f"{number:010000}"):
            named_locks.remember_key(long, f"{number}.{len(long)}")
    kept = named_locks.recent_keys()
    assert len(kept) == 1_000
    assert sum(map(len, kept.values())) <= 255_000
    assert f"{2_999:0255}" in kept.values()
