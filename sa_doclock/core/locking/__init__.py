"""The taking of a lock: one sequence, acquire(), for every kind of lock."""

from .acquire import LockTarget, acquire
from .by_key import (
    ManyByKey,
    OneByKey,
    identities_of,
    read_entities,
    read_one,
    single_key,
)
from .hidden_rows import why_hidden
from .named import NamedLock, bind_of_key, check_key, doclock_key, lock_of_key
from .refresh import expire_documents, expire_parts, refuse_unsaved
from .rows import LockedRows, Send, objects_of
from .select import RowsOfSelect
