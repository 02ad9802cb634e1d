"""The suite of sa_doclock for dialects, on Firebird."""

from sa_doclock.testing.dialect_suite import *  # noqa: F403
