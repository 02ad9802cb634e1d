"""The combinations that the library refuses, and those that fail by a defect that is known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sa_doclock import LockNotSupported
from tests.integration.mappings.mapped_document import MappedDocument
from tests.integration.mappings.ways import Way


class Refused(NamedTuple):
    """A mapping, the methods that cannot lock it, and why.

    :ivar methods: empty for all.
    """

    mapping: str
    methods: tuple[str, ...]
    error: type[Exception]
    says: str
    reason: str


REFUSED = (
    Refused(
        "ConcreteBase, superclass",
        (),
        LockNotSupported,
        "read from a Subquery",
        "SQLAlchemy reads the class from a UNION of all tables, whose rows are rows of no table",
    ),
    Refused(
        "ConcreteBase, subclass",
        (),
        LockNotSupported,
        "read from a Subquery",
        "SQLAlchemy reads a class of ConcreteBase from a subquery, also where it has one table",
    ),
    Refused(
        "AbstractConcreteBase, superclass",
        (),
        LockNotSupported,
        "read from a Subquery",
        "SQLAlchemy reads the class from a UNION of all tables, whose rows are rows of no table",
    ),
)


class Defect(NamedTuple):
    """Combinations that fail, and the number of the defect; an empty tuple stands for all."""

    number: str
    mapping: str
    methods: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    databases: tuple[str, ...] = ()


#: They fail now; a test fails when one of them does no more.
DEFECTS: tuple[Defect, ...] = ()


def refusal_of(mapping: MappedDocument, way: Way) -> Refused | None:
    """Return the refusal of this combination."""
    for one in REFUSED:
        if one.mapping == mapping.name and way.method in (one.methods or (way.method,)):
            return one
    return None


def defects_of(
    mapping: MappedDocument, way: Way, changes: Iterable[str], database: str
) -> dict[str, str]:
    """Return the numbers of the defects by which changes fail, by the name of the change."""
    return {
        change: one.number
        for one in DEFECTS
        for change in changes
        if one.mapping == mapping.name
        and way.method in (one.methods or (way.method,))
        and change in (one.changes or (change,))
        and database in (one.databases or (database,))
    }
