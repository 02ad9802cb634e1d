"""The axes of an attack: each says in one object how programs vary in one direction."""

from tests.reliability.attack.axes.axis import Axis
from tests.reliability.attack.axes.second_schema import MAPPED_SCHEMA, SET_SCHEMA

#: A program has one of these, which says where its rows are, and how its session comes to them.
STAGES = (MAPPED_SCHEMA, SET_SCHEMA)
#: Of these it has any number: they add actions.
ADDITIONS: tuple[Axis, ...] = ()
