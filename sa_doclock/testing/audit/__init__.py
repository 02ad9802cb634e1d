"""audit(): where a program lacks a lock, or uses one wrongly, found while it runs."""

from .finding import AuditFinding
from .replay import explore_finding
from .watching import Audit, audit
