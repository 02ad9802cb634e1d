"""The axes of an attack: each says in one object how programs vary in one direction."""

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

#: A program has one of these, which says where its rows are, and how its session comes to them.
STAGES = (Axis("one place"), LEVEL, MAPPED_SCHEMA, SET_SCHEMA, SECOND_ENGINE, REPLICA)
#: Of these it has any number: they add actions.
ADDITIONS: tuple[Axis, ...] = (SECOND_TABLE, IDENTITY_TOKEN, LOADER_OPTIONS, FOREIGN_END, FORK)
