"""The tables and rows of tests/integration/locking."""

from __future__ import annotations

from tests.integration.locking.conftest import *  # noqa: F403  # the fixtures that it names in __all__
