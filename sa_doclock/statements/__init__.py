"""The SQL of a lock: with_lock(), the by-key SELECTs, and the limit of a wait."""

from .by_key import (
    PARAMETERS_OF_A_READ,
    among,
    chunks,
    key_names,
    lock_among,
    lock_by_key,
    lock_by_keys,
    parameters_by_keys,
    select_by_key,
    select_by_keys,
)
from .timeouts import run_within
from .with_lock import (
    LOCK_OPTION,
    LockedEntity,
    dirty,
    locked_by,
    locked_select,
    locking,
    refuse_lock_within,
    refuse_other_lock,
    refuse_streaming,
    with_lock,
)

__all__ = [
    "LOCK_OPTION",
    "PARAMETERS_OF_A_READ",
    "LockedEntity",
    "among",
    "chunks",
    "dirty",
    "key_names",
    "lock_among",
    "lock_by_key",
    "lock_by_keys",
    "locked_by",
    "locked_select",
    "locking",
    "parameters_by_keys",
    "refuse_lock_within",
    "refuse_other_lock",
    "refuse_streaming",
    "run_within",
    "select_by_key",
    "select_by_keys",
    "with_lock",
]
