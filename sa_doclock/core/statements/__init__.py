"""The SQL of a lock: with_lock(), and the SELECTs by key."""

from ..documents import MAX_PARAMETERS, chunks
from .key_selects import (
    equals_key,
    in_order,
    key_in,
    key_in_parameter,
    key_names,
    key_not_in,
    lock_by_key,
    lock_by_keys,
    lock_where,
    parameters_by_key,
    parameters_by_keys,
    select_by_key,
    select_by_keys,
)
from .statement_cache import statement_cache
from .with_lock import (
    LOCK_OPTION,
    LockedEntity,
    add_candidate_hint,
    add_hints,
    add_lock,
    add_nolock,
    add_suffixes,
    checked_options,
    drop_lock,
    locked_entity_of,
    locked_select,
    places_of,
    refuse_combined_rows,
    refuse_nested_lock,
    refuse_other_lock,
    refuse_streaming,
    refuse_unlockable_options,
    refuse_unlockable_shape,
    relationships_with_options,
    with_lock,
)
