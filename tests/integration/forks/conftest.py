"""Documents to lock, in a database that a program of its own, which forks, uses too."""

from tests.integration.locking.conftest import *  # noqa: F403  # the fixtures that it names in __all__
