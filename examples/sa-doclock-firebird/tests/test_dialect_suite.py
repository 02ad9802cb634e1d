"""Runs sa_doclock's dialect suite on Firebird."""

from sa_doclock.testing.dialect_suite import *  # noqa: F403
