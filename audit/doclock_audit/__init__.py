"""audit() and explore(): find missing locks in a program, and show how two of its functions interfere.

The program need not use sa_doclock: both work with any program that uses SQLAlchemy.
"""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sa_doclock.testing.instruments import count_as_ours

from .exploration import Exploration, Failure, explore
from .findings import AuditFinding
from .watching import Audit, audit, explore_finding

__all__ = [
    "Audit",
    "AuditFinding",
    "Exploration",
    "Failure",
    "audit",
    "explore",
    "explore_finding",
]

count_as_ours(Path(__file__).parent)

try:
    __version__ = version("sa-doclock-audit")
except PackageNotFoundError:  # not installed: the source alone is on sys.path
    __version__ = "unknown"
