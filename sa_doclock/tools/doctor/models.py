"""Checks of the tables of documents, for the mapped classes that are given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.documents import own_table, parts_of, root_of
from ...dialects import quoted_name
from ...errors import LockNotSupported
from .check import Problem, Subject, check, problem_of_table


def _columns(subject: Subject, names: Sequence[str]) -> str:
    quote = subject.connection.dialect.identifier_preparer.quote
    return ", ".join(map(quote, names))


@check("table-missing", "warning")
def table_missing(subject: Subject) -> Iterator[Problem]:
    """The database lacks a table of a mapped document: probably the URL names the wrong database or
    schema. The table's other checks are left out.
    """
    for table in subject.tables:
        if not subject.has(table):
            yield Problem(
                f"the table {table.fullname} is not in this database",
                "check the URL, the schema and the search path; or run the migrations",
            )


@check("table-cannot-lock", "error")
def table_cannot_lock(subject: Subject) -> Iterator[Problem]:
    """A table of a document has no row locks, such as MyISAM and MEMORY on MySQL: FOR UPDATE
    silently locks nothing. For a header every lock raises LockNotSupported. A part does not roll
    back with its header.
    """
    for table in subject.tables:
        if subject.has(table):
            try:
                subject.strategy.check_table(subject.connection, table)
            except LockNotSupported as error:
                yield problem_of_table(error)


@check("key-not-unique", "error")
def key_not_unique(subject: Subject) -> Iterator[Problem]:
    """The mapped primary key of a header is not the table's primary key, and has no unique index.
    The server then reads and locks other rows too, and two rows may have one key.
    """
    for header in subject.headers:
        table, names = own_table(header), [column.name for column in root_of(header).primary_key]
        if subject.has(table) and not any(
            unique and {*columns} == {*names} for columns, unique in subject.indexes(table)
        ):
            yield Problem(
                f"{table.fullname} has neither a primary key nor a unique index on its mapped key "
                f"({', '.join(names)})",
                f"ALTER TABLE {quoted_name(subject.connection, table)} ADD PRIMARY KEY "
                f"({_columns(subject, names)});",
            )


@check("part-without-index", "warning")
def part_without_index(subject: Subject) -> Iterator[Problem]:
    """The foreign key of a part has no index. Each read of a document reads the part's whole table
    under the lock; on InnoDB and SQL Server a change of parts also locks rows of other documents.
    """
    for header in subject.headers:
        for part in parts_of(header):
            table = own_table(part.detail)
            attributes = part.detail.column_attrs
            names = [attributes[name].columns[0].name for name in part.foreign_key or ()]
            if not names or not subject.has(table):
                continue
            beginnings = (columns[: len(names)] for columns, _ in subject.indexes(table))
            if not any({*columns} == {*names} for columns in beginnings):
                index = f"ix_{table.name}_{'_'.join(names)}"[:60]
                yield Problem(
                    f"{table.fullname} has no index on ({', '.join(names)}), by which the parts of "
                    f"{header.class_.__name__} are found",
                    f"CREATE INDEX {index} ON {quoted_name(subject.connection, table)} "
                    f"({_columns(subject, names)});",
                )
