"""A pytest plugin for test_servers.py: hides every cluster, standby and pooler of this machine.

``python -m pytest -p tests.support.absent``
"""

from __future__ import annotations

from typing import Any, NoReturn

from lab.servers import mariadb, mysql, poolers, standby
from lab.servers.model import UnavailableError


def _absent(*_: Any, **__: Any) -> NoReturn:
    msg = "nothing is installed"
    raise UnavailableError(msg)


for module, name in (
    (mariadb, "installation"),
    (mysql, "installation"),
    (poolers, "_program"),
    (standby, "hot_standby"),
):
    setattr(module, name, _absent)
