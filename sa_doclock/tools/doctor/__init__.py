"""Checks of a database and its engine: settings that make locks wrong, endless or slow, with the cure."""

from .check import SEVERITIES, Check, Finding, Severity, checks_in
from .checks import CHECKS, COMMON_CHECKS, check_database
