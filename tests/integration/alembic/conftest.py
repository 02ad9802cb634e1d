"""Fixtures for the tests of the Alembic operations."""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.config import Config

ROOT = Path(__file__).parents[3]
MIGRATIONS = ROOT / "migrations"


@pytest.fixture
def environment() -> Callable[..., Config]:
    """Return a maker of Alembic's configuration for migrations/, without alembic.ini's logging."""

    def configure(url: str, output: io.StringIO | None = None) -> Config:
        config = Config(
            cmd_opts=argparse.Namespace(x=[f"url={url}"]),
            output_buffer=output or io.StringIO(),
            stdout=io.StringIO(),
        )
        config.set_main_option("script_location", str(MIGRATIONS))
        config.set_main_option("path_separator", "os")
        return config

    return configure
