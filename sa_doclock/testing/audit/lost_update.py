"""``lost-update``: a row is read without a lock, and written with what was computed from it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from .data_flow import is_computed
from .finding import AuditFinding
from .places import Place, Places
from .rows import Row, headers_of_row, short_name
from .rule import Rule
from .sent import UpdateSent
from .transactions import Read, Transaction, Write

_MOST_TABLES: Final = 500
_MOST_PLACES: Final = 50  # for each table


class LostUpdate(Rule):
    """Certain where the source shows that the new value depends on the old one."""

    code = "lost-update"

    def __init__(self) -> None:
        super().__init__()
        self._reads: OrderedDict[str, dict[Place, None]] = OrderedDict()

    def wrote(self, transaction: Transaction, write: Write) -> None:
        read = write.read
        if write.kind != "update" or read is None or _is_protected(transaction, write, read):
            return
        attributes = tuple(write.changed)
        computed = tuple(name for name in attributes if write.depends_on(read, name))
        names = computed or attributes
        if names:
            place = write.place_of(names[0])
            key = (write.row.entity, ", ".join(names), str(read.place), str(place))
            self._note(transaction, (*key, str(write.places[0])), certain=bool(computed))

    def read_table(self, transaction: Transaction, tables: frozenset[str], place: Place) -> None:
        """Remember the line, for an UPDATE whose values are computed from what it has read."""
        for table in tables:
            places = self._reads.setdefault(table, {})
            if len(places) < _MOST_PLACES:
                places[place] = None
            if len(self._reads) > _MOST_TABLES:
                self._reads.popitem(last=False)

    def updated(
        self, transaction: Transaction, update: UpdateSent, row: Row | None, places: Places
    ) -> None:
        table = str(update.table.key)
        locked = table in transaction.tables_locked or row in transaction.locks
        protected = transaction.has_wide_lock or transaction.finds_conflicts
        if update.conditions or locked or protected:
            return  # with other conditions than the key it is compare and set
        for read in self._reads.get(table, ()):
            names = ", ".join(_computed(update, places, read))
            if names:
                place = str(places[0])
                self._note(transaction, (table, names, str(read), place, place), certain=True)
                return

    def _note(self, transaction: Transaction, key: tuple[str, ...], *, certain: bool) -> None:
        def end(committed: bool) -> None:
            alone = transaction.changes_schema
            self.tally.add((*key, certain and committed and not alone))

        transaction.later(end)

    def findings(self) -> Iterator[AuditFinding]:
        for (entity, names, read, assigned, flushed, certain), count in self.tally:
            if not certain and (entity, names, read, assigned, flushed, True) in self.tally:
                continue
            name = short_name(entity)
            what = f"{read} reads the row without a lock, {assigned} writes it"
            if certain:
                message = f"{name}.{names} is computed from what was read: {what}; of two transactions at once, one change is lost"
            else:
                message = f"{name}.{names} is replaced: {what}; what another transaction has written in between is lost"
            cure = (
                f"lock where it is read: {name.lower()} = session.get_one_entity({name}, ident, "
                f"LockOptions.ForUpdate), or give {name} a version_id_col"
            )
            yield self._finding(certain, message, (read, assigned, flushed), cure, count)


def _is_protected(transaction: Transaction, write: Write, read: Read) -> bool:
    """Return whether no change of another can get lost."""
    if write.mapper.version_id_col is not None:
        return True
    if transaction.protects(write.row, read, headers_of_row(write.state)):
        return True
    return transaction.has_locked_rows_of(write.mapper.tables)


def _computed(update: UpdateSent, places: Places, read: Place) -> Iterator[str]:
    """Yield the columns whose new values are computed from what that line has read."""
    keys = frozenset(column.key for column in update.table.primary_key)
    columns = frozenset(update.table.columns.keys())
    for name in update.values:
        if is_computed(name, places, read, columns, keys):
            yield name
