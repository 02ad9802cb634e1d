"""Random models of documents, and the owners of their rows, found only by the tables' foreign keys."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, ForeignKey, ForeignKeyConstraint, Integer, String, Table
from sqlalchemy.orm import Session, configure_mappers, foreign, registry, relationship

from sa_doclock import document

DOCS = (1, 2, 3)
WITH_PARTS = "all, delete-orphan"
Row = dict[str, Any]
Key = tuple[Any, ...]
Rows = dict[str, dict[Key, Row]]


@dataclass(frozen=True)
class Owner:
    """The owners of a table's rows: the rows of another table with these values."""

    table: str
    columns: tuple[str, ...]
    refers_to: tuple[str, ...]
    where: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Kind:
    """One class of a model: its attributes and the keys of its rows."""

    entity: Any
    keys: tuple[Key, ...]
    value: str = "value"  # an attribute without a meaning
    moves: tuple[str, ...] = ()  # the attributes that name an owner
    refer: Callable[[Any], Key] = lambda _: ()  # their values, for the order with this number
    kinds: tuple[str, ...] = ()  # the values of "kind"

    @property
    def name(self) -> str:
        return str(self.entity.__name__)

    @property
    def table(self) -> Any:
        return self.entity.__mapper__.local_table

    def columns(self, values: Row) -> Row:
        """Return values by column name instead of attribute name."""
        attributes = self.entity.__mapper__.column_attrs
        return {attributes[name].columns[0].name: value for name, value in values.items()}


class Schema:
    """Classes of one random model, their tables, and the owners of the rows by table."""

    def __init__(self, draw: random.Random) -> None:
        self.registry, self.draw = registry(), draw
        self.metadata = self.registry.metadata
        self.owners: dict[str, list[Owner]] = {}
        self.kinds: dict[str, Kind] = {}
        self.stored: list[tuple[Table, Row]] = []
        self.parts: dict[str, str] = {}  # the relationships of an order, each with its class
        self.composite, self.explicit = self.chance(0.3), self.chance(0.6)
        self.key = ("tenant", "id") if self.composite else ("id",)
        self.names = ("order_tenant", "order_id") if self.composite else ("order_id",)
        self._headers()
        self._lines()
        for make in (self._tags, self._remarks, self._notes, self._tasks, self._assets):
            if self.chance(0.5):
                make()
        # @document without parts takes only those with delete-orphan; the others are then not parts.
        document(parts=(*self.parts, "lines.taxes"))(self.Order) if self.explicit else document(
            self.Order
        )
        configure_mappers()

    def chance(self, probability: float) -> bool:
        return self.draw.random() < probability

    def header(self, number: Any) -> Key:
        """Return the primary key of an order, or the foreign key to it; None refers to no order."""
        return (None if number is None else 7, number) if self.composite else (number,)

    # Tables and classes.

    def _table(
        self, name: str, *columns: Any, own: tuple[Owner, ...] = (), key: bool = True
    ) -> Table:
        keys = [Column("id", Integer, primary_key=True, autoincrement=False)] if key else []
        self.owners[name] = [*own]
        return Table(name, self.metadata, *keys, *columns)

    def _map(
        self,
        name: str,
        table: Any,
        keys: Any,
        base: Any = object,
        properties: Any = None,
        **how: Any,
    ) -> Any:
        entity = type(name, (base,), {})
        of_kind = {one: how.pop(one) for one in ("value", "moves", "refer", "kinds") if one in how}
        if base is not object:
            how["inherits"] = base
        self.registry.map_imperatively(entity, table, properties=properties or {}, **how)
        keys = tuple(key if isinstance(key, tuple) else (key,) for key in keys)
        self.kinds[name] = Kind(entity, keys, **of_kind)
        return entity

    def _store(self, table: Table, **row: Any) -> None:
        self.stored.append((table, row))

    def _to_order(self, **how: Any) -> tuple[list[Any], Owner]:
        """Return the columns that refer to an order, with their constraint, and the resulting owner."""
        columns = [Column(name, Integer, **how) for name in self.names]
        refers_to = [f"gg_order.{name}" for name in self.key]
        return [*columns, ForeignKeyConstraint(self.names, refers_to)], Owner(
            "gg_order", self.names, self.key
        )

    def foreign_key(self, number: Any) -> Row:
        """Return the values of a row that refers to this order."""
        return dict(zip(self.names, self.header(number), strict=True))

    def _part(self, name: str, entity: Any, **how: Any) -> None:
        self.Order.__mapper__.add_property(name, relationship(entity, **how))
        self.parts[name] = entity.__name__

    def _headers(self) -> None:
        customer = self._table("gg_customer", Column("value", Integer))
        tenant = [Column("tenant", Integer, primary_key=True)] if self.composite else []
        table = self._table(
            "gg_order",
            Column("value", Integer),
            Column("number", Integer, unique=True),
            Column("customer_id", ForeignKey("gg_customer.id")),
            Column("kind", String(10)),
            *tenant,
        )
        hierarchy = self.draw.choice(["", "single", "joined"])
        how = {"polymorphic_on": "kind", "polymorphic_identity": "order"} if hierarchy else {}
        # In the order of self.key, not of the table's columns.
        key = [table.c[name] for name in self.key]
        self.Order = self._map("Order", table, map(self.header, DOCS), primary_key=key, **how)
        self._map("Customer", customer, (1, 2))
        for number in (1, 2):
            self._store(customer, id=number)
        for number in DOCS:
            row = dict(zip(self.key, self.header(number), strict=True))
            kind = "rush" if number == 3 and hierarchy else "order"
            self._store(table, **row, number=100 + number, customer_id=number % 2 + 1, kind=kind)
        rush = {"base": self.Order, "polymorphic_identity": "rush"}
        if hierarchy == "single":
            self._map("Rush", None, [self.header(3)], **rush)
        elif hierarchy:
            owner = Owner("gg_order", self.key, self.key)
            columns = [
                Column(name, Integer, primary_key=True, autoincrement=False) for name in self.key
            ]
            to_order = ForeignKeyConstraint(self.key, [f"gg_order.{name}" for name in self.key])
            own = self._table(
                "gg_rush", *columns, Column("speed", Integer), to_order, own=(owner,), key=False
            )
            self._map("Rush", own, [self.header(3)], value="speed", **rush)
            self._store(own, **row)
        if self.chance(0.5):
            back: Any = {"backref": "customer"} if self.chance(0.5) else {}
            self.kinds["Customer"].entity.__mapper__.add_property(
                "orders", relationship(self.Order, **back)
            )

    def _lines(self) -> None:
        columns, owner = self._to_order()
        line = self._table(
            "gg_line", *columns, Column("value", Integer), Column("kind", String(10)), own=(owner,)
        )
        of_line = Owner("gg_line", ("line_id",), ("id",))
        tax = self._table(
            "gg_tax",
            Column("line_id", ForeignKey("gg_line.id")),
            Column("value", Integer),
            own=(of_line,),
        )
        moves = self.names
        properties: Any = {"taxes": relationship("Tax", cascade=WITH_PARTS)}
        if self.chance(0.5):
            moves = (*self.names[:-1], "order_no")
            properties["order_no"] = line.c.order_id
        back: Any = {}
        if self.chance(0.6):
            back = {"back_populates": "order"}
            properties["order"] = relationship(self.Order, back_populates="lines")
        keys = (10, 11, 20, 21, 30, 31, 90)
        own: Any = {"moves": moves, "refer": self.header}
        how: Any = {}
        if self.chance(0.4):
            how = {
                "polymorphic_on": "kind",
                "polymorphic_identity": "line",
                "kinds": ("line", "gift"),
            }
        entity = self._map("Line", line, keys, properties=properties, **how, **own)
        if how:
            self._map("Gift", None, keys[1:6:2], base=entity, polymorphic_identity="gift", **own)
        self._map("Tax", tax, keys[:6], moves=("line_id",), refer=lambda doc: (doc and 10 * doc,))
        self._part("lines", entity, cascade=WITH_PARTS, **back)
        for key in keys:
            number = key // 10 if key < 90 else None
            self._store(
                line, id=key, kind="gift" if key % 2 else "line", **self.foreign_key(number)
            )
            if number:
                self._store(tax, id=key, line_id=key)
        if self.chance(0.6):  # a second class, which may leave the foreign key unmapped
            own, some = (
                {"moves": self.names, "refer": self.header},
                {"exclude_properties": self.names},
            )
            self._map("LineAgain", line, keys, **(own if self.chance(0.6) else some))

    def _tags(self) -> None:
        # A tag belongs to each document that has it.
        of = Owner("gg_order_tag", ("id",), ("tag_id",))
        tag = self._table("gg_tag", Column("value", Integer), own=(of,) if self.explicit else ())
        key: Any = {"primary_key": True, "autoincrement": False} if self.chance(0.7) else {}
        columns, owner = self._to_order(nullable=False, **key)
        to_tag = Column("tag_id", ForeignKey("gg_tag.id"), **key)
        table = self._table(
            "gg_order_tag", *columns, to_tag, own=(owner,) if self.explicit else (), key=False
        )
        entity = self._map("Tag", tag, (1, 2))
        back: Any = {"back_populates": "orders"} if self.chance(0.5) else {}
        if back:
            orders = relationship(self.Order, secondary=table, back_populates="tags")
            entity.__mapper__.add_property("orders", orders)
        self._part("tags", entity, secondary=table, **back)
        for number in (1, 2):
            self._store(tag, id=number)
        for number in DOCS:
            self._store(table, tag_id=1, **self.foreign_key(number))

    def _of_table(
        self, name: str, *columns: Any, owner: Owner, part: bool, row: Callable[[int, int], Row]
    ) -> Table:
        """Make a table with two rows for each order, and the owner of its rows if they are parts."""
        table = self._table(name, *columns, Column("value", Integer), own=(owner,) if part else ())
        for number in DOCS:
            for key in (10 * number, 10 * number + 1):
                self._store(table, id=key, **row(number, key))
        return table

    _KEYS = (10, 11, 20, 21, 30, 31)

    def _remarks(self) -> None:
        """Make parts by a constant beside the key: of an order, or of another owner."""
        of = "number" if self.composite else "id"

        def refer(doc: Any, key: int = 0) -> Key:
            return doc and doc + 100 * self.composite, ("order", "client")[key % 2]

        table = self._of_table(
            "gg_remark",
            Column("owner_id", Integer),
            Column("owner_kind", String(10)),
            owner=Owner("gg_order", ("owner_id",), (of,), (("owner_kind", "order"),)),
            part=self.explicit,
            row=lambda doc, key: dict(
                zip(("owner_id", "owner_kind"), refer(doc, key), strict=True)
            ),
        )

        entity = self._map(
            "Remark", table, self._KEYS, moves=("owner_id", "owner_kind"), refer=refer
        )
        own = self.Order.__mapper__.local_table.c[of] == foreign(table.c.owner_id)
        self._part("remarks", entity, primaryjoin=sa.and_(own, table.c.owner_kind == "order"))

    def _notes(self) -> None:
        """Make parts that refer to a key other than the primary key."""
        owned: Any = {"cascade": WITH_PARTS} if self.chance(0.5) else {}
        table = self._of_table(
            "gg_note",
            Column("number", ForeignKey("gg_order.number")),
            owner=Owner("gg_order", ("number",), ("number",)),
            part=self.explicit or bool(owned),
            row=lambda doc, _: {"number": 100 + doc},
        )
        note = self._map(
            "Note", table, self._KEYS, moves=("number",), refer=lambda doc: (doc and 100 + doc,)
        )
        self._part("notes", note, **owned)

    def _tasks(self) -> None:
        """Make rows in no document, except those of one subclass."""
        columns, owner = self._to_order()
        owner = Owner(owner.table, owner.columns, owner.refers_to, (("kind", "errand"),))
        table = self._of_table(
            "gg_task",
            *columns,
            Column("kind", String(10)),
            owner=owner,
            part=self.explicit,
            row=lambda doc, key: {**self.foreign_key(doc), "kind": ("errand", "task")[key % 2]},
        )
        how: Any = {
            "polymorphic_on": "kind",
            "polymorphic_identity": "task",
            "exclude_properties": self.names,
        }
        task = self._map("Task", table, self._KEYS, kinds=("task", "errand"), **how)
        own: Any = {"moves": self.names, "refer": self.header, "polymorphic_identity": "errand"}
        names = {name: table.c[name] for name in self.names}
        self._part("errands", self._map("Errand", None, self._KEYS[::2], task, names, **own))

    def _assets(self) -> None:
        """Make parts of two tables."""
        columns, owner = self._to_order()
        asset = self._of_table(
            "gg_asset",
            *columns,
            Column("kind", String(10)),
            owner=owner,
            part=True,
            row=lambda doc, key: {**self.foreign_key(doc), "kind": ("machine", "asset")[key % 2]},
        )
        key: Any = Column("id", ForeignKey("gg_asset.id"), primary_key=True, autoincrement=False)
        of_asset = Owner("gg_asset", ("id",), ("id",))
        machine = self._table(
            "gg_machine", key, Column("speed", Integer), own=(of_asset,), key=False
        )
        own: Any = {"moves": self.names, "refer": self.header}
        base = self._map(
            "Asset", asset, self._KEYS, polymorphic_on="kind", polymorphic_identity="asset", **own
        )
        self._map(
            "Machine",
            machine,
            self._KEYS[::2],
            base,
            polymorphic_identity="machine",
            value="speed",
            **own,
        )
        for number in self._KEYS[::2]:
            self._store(machine, id=number)
        self._part("assets", base, cascade=WITH_PARTS)

    # The rows of the database.

    def fill(self, connection: sa.Connection) -> None:
        self.metadata.create_all(connection)
        for table, row in self.stored:
            value = {name: 0 for name in ("value", "speed") if name in table.c}
            connection.execute(table.insert().values({**value, **row}))

    def rows(self, session: Session) -> Rows:
        """Return all rows of all tables by their keys."""
        found: Rows = {}
        for name, table in self.metadata.tables.items():
            names = table.c.keys()
            key = self.key if name == "gg_order" else table.primary_key.columns.keys() or names
            answer = session.connection().exec_driver_sql(f"SELECT {', '.join(names)} FROM {name}")
            rows = [dict(zip(names, values, strict=True)) for values in answer]
            found[name] = {tuple(row[one] for one in key): row for row in rows}
        return found

    def documents_of(self, table: str, row: Row, rows: Rows) -> set[Key]:
        """Return the documents of a row."""
        if table == "gg_order":
            return {tuple(row[name] for name in self.key)}
        found: set[Key] = set()
        for owner in self.owners[table]:
            key = tuple(row[name] for name in owner.columns)
            if None not in key and all(row[name] == value for name, value in owner.where):
                for one in rows[owner.table].values():
                    if tuple(one[name] for name in owner.refers_to) == key:
                        found |= self.documents_of(owner.table, one, rows)
        return found

    def documents_written(self, before: Rows, after: Rows) -> set[Key]:
        """Return the documents of the changed rows, before and after the change."""
        found: set[Key] = set()
        for table in self.owners:
            for key in before[table].keys() | after[table].keys():
                old, new = before[table].get(key), after[table].get(key)
                for row, rows in ((old, before), (new, after)) if old != new else ():
                    if row is not None:
                        found |= self.documents_of(table, row, rows)
        return found
