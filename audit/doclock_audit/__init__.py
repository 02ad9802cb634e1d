"""audit(): where a program lacks a lock, or uses one wrongly, found while it runs."""

from .findings import AuditFinding
from .paths import check_writable
from .watching import Audit, audit, explore_finding
