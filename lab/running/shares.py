"""A second server for the database with the most tests, so that two processes share them.

Only if this run starts the first server, and does not reach it by URL or Docker.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

#: The name of the second server, by the first server's name.
SECOND: Final[Mapping[str, str]] = {"postgresql": "postgresql/2"}

#: Fewer tests end before a second server has started.
FEW: Final = 200


def servers_for(products: Iterable[str]) -> set[str]:
    """Return the names of the servers for these tests, given each test's database."""
    tests = Counter(products)
    return {*tests, *(SECOND[name] for name in SECOND if tests[name] > FEW)}


def server_of(product: str, path: str, found: Iterable[str]) -> str:
    """Return the name of the server for this file's tests.

    :param found: the names of the available servers.
    """
    second = SECOND.get(product, "")
    return second if second in found and zlib.crc32(path.encode()) % 2 else product
