"""The axes of an attack: each object describes one direction in which programs vary."""

from tests.reliability.attack.axes.axis import FOREIGN_END, FORK, Axis
from tests.reliability.attack.axes.second import (
    IDENTITY_TOKEN,
    LEVEL,
    LOADER_OPTIONS,
    MAPPED_SCHEMA,
    REPLICA,
    SECOND_ENGINE,
    SECOND_TABLE,
    SET_SCHEMA,
)

#: A program has one of these: it decides where its rows are, and how its session reaches them.
STAGES = (Axis("one place"), LEVEL, MAPPED_SCHEMA, SET_SCHEMA, SECOND_ENGINE, REPLICA)
#: A program has any number of these: they add actions.
ADDITIONS: tuple[Axis, ...] = (SECOND_TABLE, IDENTITY_TOKEN, LOADER_OPTIONS, FOREIGN_END, FORK)
