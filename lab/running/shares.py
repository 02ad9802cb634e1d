"""A second server of the database that has most of the tests: so two processes share them.

Only where the first server is one of this run, and not one by URL or by Docker.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

#: By the name of a server, the name of the other one.
SECOND: Final[Mapping[str, str]] = {"postgresql": "postgresql/2"}

#: Fewer tests are over before another server has started.
FEW: Final = 200


def servers_for(products: Iterable[str]) -> set[str]:
    """Return the names of the servers for these tests, given the database of each."""
    tests = Counter(products)
    return {*tests, *(SECOND[name] for name in SECOND if tests[name] > FEW)}


def server_of(product: str, path: str, found: Iterable[str]) -> str:
    """Return the name of the server for the tests of this file.

    :param found: the names of the servers that there are.
    """
    second = SECOND.get(product, "")
    return second if second in found and zlib.crc32(path.encode()) % 2 else product
