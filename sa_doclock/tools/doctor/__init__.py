"""Checks of a database and its engine: what makes locks wrong, endless or slow, with the cure."""

from .check import Check
from .checks import CHECKS, COMMON_CHECKS, check_database
from .finding import SEVERITIES, Finding, Severity
