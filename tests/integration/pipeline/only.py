"""Marks for tests whose sessions say themselves whether they are pipelined."""

from __future__ import annotations

import pytest

from tests.support.databases import PIPELINED

ON_POSTGRESQL = [pytest.mark.databases("postgresql"), pytest.mark.not_databases(PIPELINED)]
