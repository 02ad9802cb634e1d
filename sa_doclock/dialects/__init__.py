"""The locks of each database: one database, one file or package."""

from .cluster import warn_of_lock
from .compatible_servers import (
    COMPATIBLE_SERVERS,
    FoundServer,
    LockFeature,
    check_features,
    find_server,
)
from .connection import (
    ROLLED_BACK_LATER,
    is_rolled_back_later,
    other_connection,
    side_connection,
    side_engine,
    wrapped_error,
)
from .error_codes import code_of, raised_by_driver
from .isolation import (
    check_open,
    kept_levels,
    levels_for,
    locking_read_is_latest,
    sets_own_level,
)
from .lock_statements import NO_TEXT, has_hints
from .monitoring import LockMonitoring, describe_connections, elapsed_seconds
from .names import (
    SCHEMA_OPTION,
    quoted_name,
    schema_of,
    schema_translation,
    translated_schema,
    translated_table,
)
from .registry import (
    ENTRY_POINT_GROUP,
    by_keys_hints,
    check_support,
    find_strategy,
    has_hint,
    known_strategies,
    may_wait,
    parameter_type,
    product_of,
    strategies,
    strategy_class,
    strategy_classes,
    strategy_for,
    suffixed,
    table_hints,
)
from .transactions import SavepointMarks, is_spent
from .waits import SECONDS_WITHOUT_WAIT
