"""What the tests of the Alembic operations share."""

from __future__ import annotations

import argparse
import io
import logging
from collections.abc import Callable, Iterator
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


@pytest.fixture
def root_logger() -> Iterator[None]:
    """Put back what fileConfig() replaces for the whole process."""
    root, alembic = logging.getLogger(), logging.getLogger("alembic")
    handlers, levels = root.handlers[:], (root.level, alembic.level)
    yield
    root.handlers[:] = handlers
    for logger, level in zip((root, alembic), levels, strict=True):
        logger.setLevel(level)
    for known in logging.Logger.manager.loggerDict.values():
        if isinstance(known, logging.Logger):
            known.disabled = False
