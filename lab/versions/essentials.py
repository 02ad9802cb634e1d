"""The essential tests: the lock features that users rely on first, in a minute for each component."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_INTEGRATION: Mapping[str, tuple[str, ...]] = {
    "locking": (
        *("conflicts", "deadlock", "for_update", "fresh", "hold_limit", "release"),
        *("skip_locked", "snapshot_read", "stopped_process"),
    ),
    "timeouts": ("nothing_left", "one_limit_on_innodb", "same_meaning"),
    "named_locks": ("conflicts", "keys", "release", "transaction"),
    "claims": ("ending", "loop", "passes"),
    "monitoring": ("blockers", "lock_waits"),
    "pipeline": ("errors", "round_trips", "same_results"),
    "guard": ("refused",),
    "asyncio": ("cancellation", "methods", "transaction_ends", "waiting"),
    "doctor": ("settings",),
}


def _files(folders: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield the one file with each name, in its folder or below; fail at import unless there is exactly one."""
    for folder, names in folders.items():
        for name in names:
            (path,) = (_ROOT / "tests" / "integration" / folder).rglob(f"test_{name}.py")
            yield str(path.relative_to(_ROOT))


ESSENTIALS = tuple(_files(_INTEGRATION))

#: For a driver other than the default, which alone has a pipeline and these engine options.
OTHER_DRIVER = tuple(
    _files(
        {name: _INTEGRATION[name] for name in _INTEGRATION if name not in ("pipeline", "doctor")}
    )
)

#: For a driver that supports only asyncio.
ASYNCIO = (
    *_files({"asyncio": _INTEGRATION["asyncio"]}),
    *_files({"claims": ("batch", "leaving"), "timeouts": ("engines",)}),
    "tests/integration/documents/test_consistent.py",
)
