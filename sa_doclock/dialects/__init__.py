"""The locks of each database: one database, one file or package."""

from .registry import (
    ENTRY_POINT_GROUP,
    by_keys_hints,
    find_strategy,
    hints_of,
    product_of,
    strategies,
    strategy_classes,
    strategy_for,
    table_hints,
)
from .schema import schema_translation, translated_schema
