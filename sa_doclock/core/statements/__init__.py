"""The SQL of a lock: with_lock(), the SELECTs by key, and the lock timeout."""

from .by_key import (
    MAX_PARAMETERS,
    chunks,
    equals_key,
    in_order,
    key_in,
    key_in_parameter,
    key_names,
    lock_by_key,
    lock_by_keys,
    lock_where,
    parameters_by_keys,
    select_by_key,
    select_by_keys,
)
from .compiled_locks import NO_LOCKS, CompiledLock, CompiledLocks, locks_in, strongest_of
from .for_update import inner_select, lock_of_for_update, with_inner_select
from .lockable import (
    checked_options,
    refuse_unlockable_options,
    refuse_unlockable_shape,
    relationships_with_options,
)
from .timeouts import run_within
from .with_lock import (
    LOCK_OPTION,
    LockedEntity,
    add_candidate_hint,
    add_hints,
    add_lock,
    add_nolock,
    add_suffixes,
    drop_lock,
    locked_entity_of,
    locked_select,
    refuse_nested_lock,
    refuse_other_lock,
    refuse_streaming,
    with_lock,
)
