"""The locks of Firebird for sa_doclock."""

from .locks import FirebirdLocks
from .monitoring import FirebirdMonitoring

__all__ = ["FirebirdLocks", "FirebirdMonitoring"]
