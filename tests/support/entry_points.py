"""A package that provides a LockStrategy, installed for one test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from sa_doclock.dialects import ENTRY_POINT_GROUP, strategy_classes, suffixed, table_hints


def _clear_caches() -> None:
    for one in (strategy_classes, suffixed, table_hints):
        one.cache_clear()


@contextmanager
def installed(points: Mapping[str, str], folder: Path) -> Iterator[Path]:
    """Install a distribution with these entry points inside the block.

    :returns: the folder of the installation, on ``sys.path``.
    """
    site = folder / "site"
    package = site / "acme_locks-1.0.dist-info"
    package.mkdir(parents=True)
    package.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: acme-locks\n")
    lines = [f"[{ENTRY_POINT_GROUP}]", *(f"{name} = {value}" for name, value in points.items())]
    package.joinpath("entry_points.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        _clear_caches()
        yield site
    _clear_caches()
