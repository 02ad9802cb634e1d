"""The types by which the values of keys are sent, so that every database finds a row by its index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement

from ...dialects import parameter_type
from .. import documents


def key_in(
    columns: Sequence[ColumnElement[Any]], keys: Sequence[Sequence[Any]]
) -> ColumnElement[bool]:
    """Return ``key IN (...)``, with the values as values of their columns."""
    return documents.key_in(columns, keys, parameter_type)
