"""The @document decorator: it declares the headers of documents and their parts.

A declaration belongs to a class, and may come before or after its mapping.  It is resolved when
SQLAlchemy configures the mappers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar, overload
from weakref import WeakKeyDictionary

from sqlalchemy import event, inspect
from sqlalchemy.exc import ArgumentError, InvalidRequestError
from sqlalchemy.orm import Mapper, RelationshipProperty

from .mapping import clear_mapper_caches, listen_to_mappers, mapper_cache, relationships_of, root_of
from .parts import (
    Part,
    build_part,
    is_row_of,
    is_row_of_root,
    is_second_class,
    part_as_mapped,
    undeclared_parts,
)

C = TypeVar("C", bound=type)
Flag = Literal["no_key", "version", "checkout"]
Listener = Callable[[Collection[Mapper[Any]]], None]


class _Declaration(NamedTuple):
    parts: tuple[str, ...] | None
    no_key: bool
    version: bool
    checkout: bool


# Global, like mapped classes: a declaration holds for all sessions of the process.
# Threads: each use is one operation of a dict or list, hence atomic; iteration is over a copy of
# the keys, which is atomic too.
_declared: WeakKeyDictionary[type[Any], _Declaration] = WeakKeyDictionary()
_unchecked: WeakKeyDictionary[type[Any], None] = WeakKeyDictionary()
_listeners: list[Listener] = []

# SQLAlchemy calls after_configured when other threads can use the mappers already.  So each write
# compares the number of configurations with the number last notified.
# Threads: SQLAlchemy's lock protects _configurations.  If two threads set _notified, the older
# number only has the listeners called again.
_configurations = 0
_notified = 0


@overload
def document(entity: C, /) -> C: ...


@overload
def document(
    *,
    parts: Iterable[str] | None = None,
    no_key: bool = False,
    version: bool = False,
    checkout: bool = False,
) -> Callable[[C], C]: ...


def document(
    entity: Any = None,
    /,
    *,
    parts: Iterable[str] | None = None,
    no_key: bool = False,
    version: bool = False,
    checkout: bool = False,
) -> Any:
    """Declare that a mapped class is the header of a document, and name its parts.

    ``@document(parts=("lines", "lines.taxes"))`` names them.  Without arguments the parts are the
    relationships with a delete-orphan cascade, and theirs in turn, except those to another declared
    document.

    The class may be mapped later.  The declaration also applies to subclasses, which may declare
    additional parts, but not to concrete ones, whose rows are in their own tables.  On an abstract
    class or a mixin it declares each mapped class below it.

    In a :class:`LockingSession` a declared document is written only under its ForUpdate lock (see
    ``guard``), and all its parts are read again after the lock.

    A relationship that is added to a configured mapper takes effect when SQLAlchemy next configures
    mappers.  If a class is mapped to the association table of a many-to-many relationship, make
    that class the part.

    Example::

        @document(parts=("lines",))
        class Invoice(Base):
            __tablename__ = "invoices"
            id: Mapped[int] = mapped_column(primary_key=True)
            lines: Mapped[list["InvoiceLine"]] = relationship()

        class InvoiceLine(Base):
            __tablename__ = "invoice_lines"
            id: Mapped[int] = mapped_column(primary_key=True)
            invoice_id: Mapped[int] = mapped_column(ForeignKey("invoices.id"))

    :param parts: names of relationships, from the header; a dot leads to the parts of a part.
    :param no_key: ForUpdate of this class means ``ForUpdate | NoKey``: while a header is locked,
        others may insert rows that refer to it.  Use it for a row that many documents refer to,
        such as a customer or an item, and not for a header whose details are inserted without its
        lock.  It applies to the whole inheritance hierarchy.
    :param version: a flush that inserts, changes or deletes a part raises the version of the header
        (its ``version_id_col``) once, so that ``version=`` of ``get_entity()`` detects any change
        of the document.  INSERT, UPDATE and DELETE constructs and ``bulk_*()`` methods do not raise
        it.
    :param checkout: documents of this class can be checked out.  In a session made with
        ``checkouts=``, each ForUpdate lock of them then reads, in one more statement, whether
        another owner has them. It applies to the whole inheritance hierarchy.
    :raises TypeError: ``parts`` is not a sequence of strings, or no class is decorated.
    :raises sqlalchemy.exc.ArgumentError: when SQLAlchemy configures the mappers: a part is unknown,
        view-only, in a cycle of parts, or claimed by another header; or ``version`` is given for a
        class without ``version_id_col``.
    """
    if isinstance(parts, str):
        raise TypeError(f'parts is a sequence of names: ("{parts}",), not "{parts}"')
    paths = None if parts is None else tuple(parts)
    for path in paths or ():
        if not isinstance(path, str):
            raise TypeError(f"a part is the name of a relationship, not {path!r}")

    def declare(declared: C) -> C:
        if not isinstance(declared, type):
            raise TypeError(f"@document is for a class, not {declared!r}")
        _listen_to_mappers()
        _declared[declared] = _Declaration(paths, no_key, version, checkout)
        _unchecked[declared] = None
        clear_mapper_caches()
        if any(inspect(mapped).configured for mapped in _mapped_classes(declared)):
            _mappers_configured()  # SQLAlchemy has no more event for it
        return declared

    return declare if entity is None else declare(entity)


# Threads: two that miss the cache at once pass the same functions, which SQLAlchemy adds once.
@lru_cache(maxsize=1)
def _listen_to_mappers() -> None:
    listen_to_mappers()  # first: the check must find the caches empty
    event.listen(Mapper, "before_configured", _configuration_begins)
    event.listen(Mapper, "after_configured", _mappers_configured)


def _configuration_begins() -> None:
    global _configurations  # noqa: PLW0603  # SQLAlchemy holds its lock here
    _configurations += 1


def _classes_in(declarations: WeakKeyDictionary[type[Any], Any]) -> list[type[Any]]:
    """Return a copy of the classes: another thread may declare one during the iteration."""
    found = (reference() for reference in declarations.keyrefs())
    return [cls for cls in found if cls is not None]


def _mapped_classes(declared: type[Any]) -> Iterator[type[Any]]:
    """Yield the class if it is mapped, else the first mapped classes below it.

    An abstract class and a mixin are never mapped themselves.
    """
    if isinstance(inspect(declared, raiseerr=False), Mapper):
        yield declared
    else:
        for subclass in declared.__subclasses__():
            yield from _mapped_classes(subclass)


def _declare_subclasses() -> None:
    for declared in _classes_in(_declared):
        for mapped in _mapped_classes(declared):
            if mapped not in _declared:
                _declared[mapped] = _declared[declared]
                _unchecked[mapped] = None
                clear_mapper_caches()


def _mappers_configured() -> None:
    _declare_subclasses()
    try:
        _check_declarations()
    finally:
        _notify_listeners()


def notify_in_time() -> None:
    """Call the listeners if the thread that configures the mappers has not called them yet."""
    if _notified != _configurations:
        clear_mapper_caches()
        _declare_subclasses()
        _notify_listeners()


def _notify_listeners() -> None:
    global _notified  # noqa: PLW0603  # threads that come here at once do the same
    until = _configurations
    for root in declared_roots():
        with suppress(ArgumentError, InvalidRequestError):
            members = {root, *(part.detail for part in parts_of(root))}
            for listener in _listeners:
                listener(members)
    _notified = until


def _check_declarations() -> None:
    # Each is checked once, so that a wrong one does not fail later configurations; each use of the
    # wrong one raises the error again.
    wrong: ArgumentError | None = None
    for declared in _classes_in(_unchecked):
        mapper = inspect(declared, raiseerr=False)
        if isinstance(mapper, Mapper):  # otherwise it is mapped later
            _unchecked.pop(declared, None)
            try:
                parts_of(root_of(mapper))
                if _declared[declared].version and mapper.version_id_col is None:
                    wrong = wrong or ArgumentError(
                        f"@document on {declared.__name__}: version=True needs a column that is mapped "
                        "as version_id_col"
                    )
            except ArgumentError as error:
                wrong = wrong or error
    if wrong is not None:
        raise wrong


def listen_for_documents(listener: Listener) -> Listener:
    """Call the function with the mappers of each document whenever documents may have been added.

    Several threads may call it at once, and one of them again with the same mappers.
    """
    _listeners.append(listener)
    return listener


@mapper_cache
def any_declared() -> bool:
    """Return whether any document is declared."""
    return bool(_declared)


@mapper_cache
def is_declared(mapper: Mapper[Any]) -> bool:
    """Return whether rows of this class are headers of declared documents."""
    hierarchy = (above for above in mapper.iterate_to_root() if root_of(above) is root_of(mapper))
    return any(above.class_ in _declared for above in hierarchy)


@mapper_cache
def declares(mapper: Mapper[Any], flag: Flag) -> bool:
    """Return whether a document of this hierarchy is declared with the flag; see :func:`document`."""
    return any(getattr(declared, flag) for _, declared in _declarations(root_of(mapper)))


def _declarations(root: Mapper[Any]) -> Iterator[tuple[Mapper[Any], _Declaration]]:
    for mapper in root.self_and_descendants:
        if mapper.class_ in _declared and root_of(mapper) is root:
            yield mapper, _declared[mapper.class_]


@mapper_cache
def document_root(mapper: Mapper[Any]) -> Mapper[Any] | None:
    """Return the root of the declared document of which a row of this class is the header or a part.

    The table decides, whichever class maps it; if several classes map it, the declared one comes
    first.
    """
    return _root_by(Mapper.isa, mapper) or _root_by(is_second_class, mapper)


def _root_by(
    rule: Callable[[Mapper[Any], Mapper[Any]], bool], mapper: Mapper[Any]
) -> Mapper[Any] | None:
    """Return the root of the first declared document to which the rule assigns this class."""
    for root in declared_roots():
        header = mapper if root_of(mapper) is root else root
        if is_row_of_root(mapper, root) and rule(mapper, root) and is_declared(header):
            return root
        with suppress(ArgumentError):  # of an unrelated document
            if any(rule(mapper, part.detail) for part in parts_of(root)):
                return root
    return None


@mapper_cache
def parts_of(root: Mapper[Any]) -> tuple[Part, ...]:
    """Return the parts of a header of this hierarchy, as declared; owners come before their parts.

    Without a declaration, these are the one-to-many collections.
    """
    if not any(_declarations(root)):
        others = (
            candidate
            for candidate in undeclared_parts(root)
            if _root_by(Mapper.isa, candidate.detail) is None
        )
        return tuple(others)
    parts = _resolved(root)
    for part in parts:
        _refuse_two_headers(root, part)
    return parts


@mapper_cache
def parts_with_detail(root: Mapper[Any], mapper: Mapper[Any]) -> tuple[Part, ...]:
    """Return the parts of this root's documents that a row of this class can be; each link once."""
    links = {
        (part.owner, part.name): part_as_mapped(part, mapper)
        for part in parts_of(root)
        if is_row_of(mapper, part.detail)
    }
    return tuple(links.values())


@mapper_cache
def chain_of(root: Mapper[Any], part: Part) -> tuple[Part, ...]:
    """Return the parts from the header down to this one."""
    for owner in parts_of(root):
        related = owner.detail.isa(part.owner) or part.owner.isa(owner.detail)
        if owner.path == part.owner_path and related:
            return (*chain_of(root, owner), part)
    return (part,)


@mapper_cache
def has_nested_headers(root: Mapper[Any]) -> bool:
    """Return whether a header may be a part of another; the topmost is the document's header."""
    return any(part.recursive and root_of(part.owner) is root for part in parts_of(root))


def declared_roots() -> list[Mapper[Any]]:
    """Return the roots of the hierarchies that have a declared document."""
    mappers = (inspect(entity, raiseerr=False) for entity in _classes_in(_declared))
    roots = (root_of(mapper) for mapper in mappers if isinstance(mapper, Mapper))
    return list(dict.fromkeys(roots))


@mapper_cache
def _resolved(root: Mapper[Any]) -> tuple[Part, ...]:
    found: dict[tuple[str, Mapper[Any]], Part] = {}
    for header, declaration in _declarations(root):
        if declaration.parts is None:
            parts = _delete_orphan_parts(header, "", (root,))
        else:
            parts = _named_parts(header, root, declaration.parts)
        found.update({(part.path, part.owner): part for part in parts})
    # Owners come before their parts, and nested lines before the taxes of lines.
    return tuple(sorted(found.values(), key=lambda p: (p.path.count("."), not p.recursive)))


def _delete_orphan_parts(
    owner: Mapper[Any], path: str, above: tuple[Mapper[Any], ...]
) -> Iterator[Part]:
    """Yield the parts that are deleted with their owner: relationships with delete-orphan."""
    for relationship in relationships_of(owner):
        if relationship.cascade.delete_orphan and not _is_other_document(relationship, above):
            part = _checked_part(relationship, path, above)
            yield part
            if not part.recursive:
                inside = (*above, root_of(relationship.mapper))
                yield from _delete_orphan_parts(relationship.mapper, part.path, inside)


def _named_parts(header: Mapper[Any], root: Mapper[Any], paths: Iterable[str]) -> Iterator[Part]:
    for path in paths:
        owner, so_far = header, ""
        above: tuple[Mapper[Any], ...] = (root,)
        for name in path.split("."):
            named = [
                relationship for relationship in relationships_of(owner) if relationship.key == name
            ]
            if not named:
                raise _error(
                    above,
                    f"the part {path!r} is unknown: {owner.class_.__name__} has no relationship "
                    f"{name!r}, only {', '.join(relationship.key for relationship in relationships_of(owner))}",
                )
            if _is_other_document(named[0], above):
                target = named[0].mapper.class_.__name__
                raise _error(above, f"the part {path!r} leads to {target}, a document of its own")
            part = _checked_part(named[0], so_far, above)
            yield part
            owner, so_far, above = part.detail, part.path, (*above, root_of(part.detail))


def _is_other_document(
    relationship: RelationshipProperty[Any], above: tuple[Mapper[Any], ...]
) -> bool:
    return is_declared(relationship.mapper) and root_of(relationship.mapper) is not above[0]


def _checked_part(
    relationship: RelationshipProperty[Any], path: str, above: tuple[Mapper[Any], ...]
) -> Part:
    path = f"{path}.{relationship.key}" if path else relationship.key
    if root_of(relationship.mapper) in above[:-1]:
        target = relationship.mapper.class_.__name__
        raise _error(above, f"the part {path!r} leads back to {target}")
    if relationship.viewonly:
        problem = f"the part {path!r} is view-only: name the relationship that is written"
        raise _error(above, problem)
    return build_part(path, relationship)


def _refuse_two_headers(root: Mapper[Any], ours: Part) -> None:
    for key in _claim_keys(ours.detail):
        for other, theirs in _claims().get(key, ()):
            same = is_row_of(ours.detail, theirs.detail) or is_row_of(theirs.detail, ours.detail)
            if same and other is not root:
                raise _error(
                    (root,),
                    f"the part {ours.path!r}, {ours.detail.class_.__name__}, already belongs to "
                    f"{other.class_.__name__} as {theirs.path!r}: a part has one header",
                )


@mapper_cache
def _claims() -> Mapping[object, list[tuple[Mapper[Any], Part]]]:
    """Return the parts of all declared documents, by the keys that classes of the same rows share."""
    found: defaultdict[object, list[tuple[Mapper[Any], Part]]] = defaultdict(list)
    for root in declared_roots():
        with suppress(ArgumentError):  # the check of that document raises it
            for part in _resolved(root):
                for key in _claim_keys(part.detail):
                    found[key].append((root, part))
    return found


def _claim_keys(mapper: Mapper[Any]) -> tuple[object, ...]:
    return (mapper.base_mapper, *mapper.tables)


def _error(above: tuple[Mapper[Any], ...], problem: str) -> ArgumentError:
    return ArgumentError(f"@document on {above[0].class_.__name__}: {problem}")
