"""Alembic's entry point ``alembic.plugins``: autogenerate knows check-out tables without an import.

Alembic 1.18 and later call :func:`setup` while Alembic itself is being imported, so the operations are
imported when autogenerate runs.  The name of the entry point matches ``alembic.autogenerate.*``, the
default of ``autogenerate_plugins``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alembic.runtime.plugins import Plugin
    from alembic.util import PriorityDispatchResult


def setup(plugin: Plugin) -> None:
    """Register the comparison that writes ``op.create_checkout_table()``."""
    from alembic.util import DispatchPriority  # noqa: PLC0415

    plugin.add_autogenerate_comparator(_compare, "schema", priority=DispatchPriority.LAST)


def _compare(*found: Any) -> PriorityDispatchResult:
    from alembic.util import PriorityDispatchResult  # noqa: PLC0415

    from .alembic import replace_checkout_tables  # noqa: PLC0415

    replace_checkout_tables(*found)
    return PriorityDispatchResult.CONTINUE
