"""Random writes to the rows of a random model: flushes, bulk methods, and statements."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import aliased

from lab.guard_generator.schemas import DOCS, Kind, Row, Schema

Run = Callable[[Any], object]
Step = tuple[str, Run]
"""The shape of a write, and the function that does it in a session."""


class Steps:
    """Random steps on one schema; None if the draw does not fit the model."""

    def __init__(self, schema: Schema, draw: random.Random, dialect: str) -> None:
        self.schema, self.draw, self.dialect = schema, draw, dialect
        self._last = 1000

    def step(self) -> Step:
        some = (self.flush,) * 12, (self.update,) * 3, (self.delete,) * 2, (self.insert,) * 2
        ways = (
            *sum(some, ()),
            self.by_key,
            self.bulk,
            self.association,
            self.from_select,
            self.upsert,
        )
        while True:
            # KeyError: the table of a subclass lacks the column; ArgumentError: an aliased() of a join.
            with suppress(KeyError, sa.exc.ArgumentError):
                if found := self.draw.choice(ways)():
                    return found

    # Choices.

    def fresh(self) -> int:
        self._last += 1
        return self._last

    def kind(self) -> Kind:
        kinds = [*self.schema.kinds.values()]
        return self.draw.choices(
            kinds, [3 if one.name not in ("Customer", "Tag") else 1 for one in kinds]
        )[0]

    def owner(self, kind: Kind, *, whole: bool = False) -> Row:
        """Return values of the attributes that name another owner; sometimes only a part of them."""
        doc = self.draw.choice(DOCS if whole else (*DOCS, None))
        values = dict(zip(kind.moves, kind.refer(doc), strict=True))
        if kind.name == "Remark":
            values["owner_kind"] = self.draw.choice(["order", "client"])
        if values and not whole and self.draw.random() < 0.3:
            name = self.draw.choice([*values])
            return {name: values[name]}
        return values

    def row(self, kind: Kind) -> Row:
        """Return the values of a new row by attribute."""
        row: Row = {"id": self.fresh(), kind.value: self.fresh()}
        if kind.name in ("Order", "Rush"):
            row |= {"tenant": 7} if self.schema.composite else {}
            row["number"] = self.fresh()
            row |= {"customer_id": 1} if self.draw.random() < 0.3 else {}
        return row | self.owner(kind, whole=self.draw.random() < 0.8)

    def named(self, kind: Kind) -> tuple[str, Any, Callable[[str], Any]]:
        """Return a way to name the rows of a class, the name, and its columns by attribute."""
        way = self.draw.choice(
            ["class", "class", "class", "table", "table", "alias", "aliased", "other"]
        )
        entity, table = kind.entity, kind.table
        if way in ("class", "aliased"):
            source = entity if way == "class" else aliased(entity)
            return way, source, lambda name: getattr(source, name)
        if way == "alias":
            table = table.alias()
        elif way == "other":
            table = sa.table(table.name, *(sa.column(one.name, one.type) for one in table.c))

        def column(name: str) -> Any:
            columns = entity.__mapper__.column_attrs[name].columns
            return table.c[
                next((one for one in columns if one.table is kind.table), columns[0]).name
            ]

        return way, table, column

    def where(self, kind: Kind, column: Callable[[str], Any]) -> tuple[str, list[Any]]:
        key, number = self.draw.choice(kind.keys)[-1], 100 + self.draw.choice(DOCS)
        order = self.schema.Order.__mapper__.local_table
        ways: dict[str, Callable[[], list[Any]]] = {
            "key": lambda: [column("id") == key],
            "keys": lambda: [column("id").in_([key])],
            "range": lambda: [column("id") < key],
        }
        if kind.moves[-1:] in (("order_id",), ("order_no",)):
            of = kind.moves[-1]
            ways |= {
                "owner": lambda: [column(of) == number - 100],
                "subquery": lambda: [
                    column(of).in_(sa.select(order.c.id).where(order.c.number == number))
                ],
                "join": lambda: [column(of) == order.c.id, order.c.number == number],
            }
        what = self.draw.choice([*ways, "key"])
        return ("all", []) if self.draw.random() < 0.05 else (what, ways[what]())

    # Statements.

    def executed(self, shape: str, statement: Any, rows: Any = None) -> Step:
        how = self.draw.choice([False, "evaluate", "fetch", "auto"])
        options = {} if statement.is_insert else {"synchronize_session": how}
        return shape, lambda s: s.execute(statement, rows, execution_options=options)

    def update(self) -> Step | None:
        kind = self.kind()
        way, target, column = self.named(kind)
        what, where = self.where(kind, column)
        values: dict[str, Callable[[], Row]] = {
            "value": lambda: {kind.value: self.fresh()},
            "owner": lambda: self.owner(kind),
            "both": lambda: {kind.value: self.fresh(), **self.owner(kind)},
            "expression": lambda: {kind.value: column(kind.value) + 1},
            "owner expression": lambda: {name: column(name) + 0 for name in kind.moves[-1:]},
            "kind": lambda: {"kind": self.draw.choice(kind.kinds)} if kind.kinds else {},
            "key": lambda: {"id": self.fresh()},
        }
        sets = self.draw.choice([*values])
        new = values[sets]()
        named = new if way == "class" else {column(name): value for name, value in new.items()}
        statement = sa.update(target).where(*where).values(named)
        shape = f"UPDATE {kind.name} {way}, {what}, SET {sets}"
        return self.executed(shape, statement) if new else None

    def delete(self) -> Step:
        kind = self.kind()
        way, target, column = self.named(kind)
        what, where = self.where(kind, column)
        return self.executed(f"DELETE {kind.name} {way}, {what}", sa.delete(target).where(*where))

    def insert(self) -> Step | None:
        kind, way = self.kind(), self.draw.choice(["class", "table", "values"])
        first = self.row(kind)
        rows = [first, {**first, **self.row(kind)}][: self.draw.choice([1, 1, 2])]
        shape, identity = f"INSERT {kind.name} {way}", kind.entity.__mapper__.polymorphic_identity
        if way == "class":
            return self.executed(shape, sa.insert(kind.entity), rows)
        if way == "values":
            return self.executed(shape, sa.insert(kind.entity).values(rows))
        of_table = [
            {k: v for k, v in kind.columns(row).items() if k in kind.table.c} for row in rows
        ]
        of_kind = {"kind": identity} if "kind" in kind.table.c and identity else {}
        return self.executed(shape, sa.insert(kind.table), [row | of_kind for row in of_table])

    def by_key(self) -> Step:
        kind = self.kind()
        owner = self.owner(kind) if self.draw.random() < 0.4 else {}
        keys = self.draw.sample(kind.keys, min(len(kind.keys), self.draw.choice([1, 2])))
        names = [one.key for one in kind.entity.__mapper__.primary_key]
        rows = [
            {**dict(zip(names, key, strict=True)), kind.value: self.fresh(), **owner}
            for key in keys
        ]
        what = f"{kind.name}, SET {'owner' if owner else 'value'}"
        if self.draw.random() < 0.5:
            return f"bulk_update {what}", lambda s: s.bulk_update_mappings(kind.entity, rows)
        return f"UPDATE by key {what}", lambda s: s.execute(sa.update(kind.entity), rows)

    def bulk(self) -> Step:
        kind = self.kind()
        row, key, value = self.row(kind), self.draw.choice(kind.keys), self.fresh()
        if self.draw.random() < 0.5:
            return f"bulk_insert {kind.name}", lambda s: s.bulk_insert_mappings(
                kind.entity, [{**row}]
            )

        def save(session: Any) -> None:
            objects = [kind.entity(), session.get(kind.entity, key)]
            for name, new in row.items():
                setattr(objects[0], name, new)
            if objects[1] is not None:
                setattr(objects[1], kind.value, value)
            with session.no_autoflush:
                session.bulk_save_objects(filter(None, objects))
            session.expire_all()

        return f"bulk_save {kind.name}", save

    def association(self) -> Step | None:
        table = self.schema.metadata.tables.get("gg_order_tag")
        if table is None:
            return None
        old, new = (self.schema.foreign_key(doc) for doc in self.draw.sample(DOCS, 2))
        of_old = [table.c[name] == value for name, value in old.items()]
        statements = {
            "insert": sa.insert(table).values(tag_id=2, **old),
            "delete": sa.delete(table).where(*of_old),
            "update tag": sa.update(table).where(*of_old).values(tag_id=2),
            "update owner": sa.update(table).where(*of_old).values(tag_id=2, **new),
            "delete by tag": sa.delete(table).where(table.c.tag_id == 1),
        }
        what = self.draw.choice([*statements])
        return f"association {what}", lambda s: s.execute(statements[what])

    def from_select(self) -> Step:
        table = self.schema.kinds["Line"].table
        to = (
            table.c.order_id
            if self.draw.random() < 0.5
            else sa.literal(self.draw.choice(DOCS)).label("o")
        )
        others = [table.c[name] for name in ("value", *self.schema.names[:-1])]
        rows = sa.select(table.c.id + self.fresh(), to, *others)
        rows = rows.where(table.c.order_id == self.draw.choice(DOCS))
        names = ["id", "order_id", *(one.name for one in others)]
        return "INSERT FROM SELECT", lambda s: s.execute(sa.insert(table).from_select(names, rows))

    def upsert(self) -> Step:
        kind = self.schema.kinds[self.draw.choice(["Line", "Order", "Tax"])]
        key = self.draw.choice([self.fresh(), *(one[-1] for one in kind.keys)])
        row = kind.columns({**self.row(kind), "id": key})
        moves = kind.columns(dict.fromkeys(kind.moves)) if self.draw.random() < 0.3 else {}
        sets = [kind.value, *(name for name in moves if name in row)]
        target, shape = (
            self.draw.choice([kind.entity, kind.table]),
            f"UPSERT {kind.name}, SET {' '.join(sets)}",
        )
        if self.dialect in ("mysql", "mariadb"):
            of_mysql = mysql.insert(target).values(row)
            new = {one: of_mysql.inserted[one] for one in sets}
            return self.executed(shape, of_mysql.on_duplicate_key_update(new))
        plain: Any = (sqlite if self.dialect == "sqlite" else postgresql).insert(target).values(row)
        if self.draw.random() < 0.3:
            return self.executed(f"INSERT {kind.name} OR NOTHING", plain.on_conflict_do_nothing())
        index = [one.name for one in kind.table.primary_key]
        new = {one: plain.excluded[one] for one in sets}
        return self.executed(shape, plain.on_conflict_do_update(index_elements=index, set_=new))

    # Flushes.

    def flush(self) -> Step | None:
        changes = (
            *(self._move, self._of_kind, self._expression, self._relate, self._new) * 3,
            *(self._set, self._delete, self._key, self._customer),
        )
        found = [self.draw.choice(changes)() for _ in range(self.draw.choice([1, 1, 1, 2, 3]))]
        some = [one for one in found if one is not None]

        def flush(session: Any) -> None:
            with ExitStack() as session.info["flush"], session.no_autoflush:
                kept = [change(session) for _, change in some]
                session.flush()
            del kept

        return (
            ("flush " + " + ".join(sorted({shape for shape, _ in some})), flush) if some else None
        )

    def _of_loaded(self, kind: Kind, change: Callable[[Any, Any], object]) -> Run:
        key = self.draw.choice(kind.keys)

        def run(session: Any) -> Any:
            found = session.get(kind.entity, key)
            return found and (found, change(session, found))

        return run

    def _setting(self, kind: Kind, values: Row) -> Run:
        """Set these values: on a loaded object, on an expired object, or from a listener during the flush."""
        when, other = self.draw.choice(["loaded", "expired", "listener"]), self.fresh()

        def change(session: Any, found: Any) -> None:
            if when == "listener":
                setattr(found, kind.value, other)
                _set_in_flush(session, "before_update", found, values)
                return
            if when == "expired":
                session.expire(found)
            _set_all(found, values)

        return self._of_loaded(kind, change)

    def _set(self) -> Step:
        kind = self.kind()
        return f"set {kind.name}", self._setting(kind, {kind.value: self.fresh()})

    def _move(self) -> Step:
        kind = self.kind()
        return f"move {kind.name}", self._setting(kind, self.owner(kind))

    def _delete(self) -> Step:
        kind = self.kind()
        return f"delete {kind.name}", self._of_loaded(
            kind, lambda session, found: session.delete(found)
        )

    def _of_kind(self) -> Step | None:
        kind = self.kind()
        if not kind.kinds:
            return None
        new = {"kind": self.draw.choice(kind.kinds)}
        return f"kind {kind.name}", self._setting(kind, new)

    def _key(self) -> Step:
        kind = self.kind()
        return f"key {kind.name}", self._setting(kind, {"id": self.fresh()})

    def _expression(self) -> Step:
        kind = self.kind()
        owner = self.owner(kind, whole=True)
        if kind.moves and self.draw.random() < 0.7 and isinstance(owner[kind.moves[0]], int):
            new = {kind.moves[0]: sa.literal(owner[kind.moves[0]]) + 0}
            return f"owner expression {kind.name}", self._setting(kind, new)
        new = {kind.value: getattr(kind.entity, kind.value) + 1}
        return f"expression {kind.name}", self._setting(kind, new)

    def _new(self) -> Step:
        """Add a new object; a listener may set its owner during the flush."""
        kind, late = self.kind(), self.draw.random() < 0.5
        row = self.row(kind)

        def add(session: Any) -> None:
            new, owner = kind.entity(), {name: row[name] for name in kind.moves if name in row}
            _set_all(new, {name: row[name] for name in row if not (late and name in owner)})
            if late:
                _set_in_flush(session, "before_insert", new, owner)
            session.add(new)

        return f"new {kind.name}", add

    def _relate(self) -> Step:
        """Append to a collection of an order or remove from it, possibly from the other side."""
        attribute = self.draw.choice([*self.schema.parts])
        kind = self.schema.kinds[self.schema.parts[attribute]]
        way = self.draw.choice(["append", "remove", "new"])
        doc, key, row = self.draw.choice(DOCS), self.draw.choice(kind.keys), {"id": self.fresh()}
        back = hasattr(kind.entity, "orders") and self.draw.random() < 0.5

        def change(session: Any) -> Any:
            order = session.get(self.schema.Order, self.schema.header(doc))
            part = kind.entity() if way == "new" else session.get(kind.entity, key)
            collection, member = (part.orders, order) if back else (getattr(order, attribute), part)
            if way == "new":
                part.id = row["id"]
            if way == "remove":
                collection.remove(member if member in collection else collection[0])
            elif member not in collection:
                collection.append(member)
            return order, part

        return f"{way} {attribute}{' by the other side' if back else ''}", change

    def _customer(self) -> Step | None:
        customer, doc = self.schema.kinds["Customer"], self.draw.choice(DOCS)
        if not hasattr(customer.entity, "orders"):
            return None

        def change(session: Any, found: Any) -> Any:
            order = session.get(self.schema.Order, self.schema.header(doc))
            (found.orders.remove if order in found.orders else found.orders.append)(order)
            return order

        return "customer.orders", self._of_loaded(customer, change)


def _set_all(found: Any, values: Row) -> None:
    for name, value in values.items():
        setattr(found, name, value)


def _set_in_flush(session: Any, event: str, found: Any, values: Row) -> None:
    """Set these values of one object when the flush is about to write it."""

    def listener(_mapper: Any, _connection: Any, target: Any) -> None:
        if target is found:
            _set_all(found, values)

    sa.event.listen(type(found), event, listener)
    session.info["flush"].callback(sa.event.remove, type(found), event, listener)
