"""The features of a session: each joins the locks and the transaction by the hooks of a SessionPart."""

from .batch import BATCH_WAIT, Priority, check_priority
from .creation import Creation, check_creation
from .gate import DocumentGate
from .guard import GuardMode, WriteGuard, atomic_update
from .install import install_parts, options_of_all
from .on_commit import AfterCommit
