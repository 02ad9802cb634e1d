"""Documents: the header row, the parts, and the way from a row to its header."""

from .declare import (
    any_declared,
    chain_of,
    declared_roots,
    declares,
    document,
    document_root,
    listen_for_documents,
    notify_in_time,
    parts_of,
    parts_with_detail,
)
from .key_values import converts, key_value
from .mapping import (
    clear_with_mappers,
    columns_read,
    columns_values,
    document_key,
    entity_cache,
    from_clauses_within,
    has_expired,
    has_subquery,
    header_table,
    hierarchy_of,
    identity_of,
    index_of_key,
    key_attributes,
    key_columns,
    key_order,
    listen_to_mappers,
    loaded_mappers,
    lockable_root,
    mapper_cache,
    mapper_of,
    may_read_rows,
    own_table,
    plain_key_type,
    root_of,
    row_order,
    spans_rows,
    tables_of,
    tables_within,
    unread_columns,
)
from .owners import UNKNOWN, HeaderResolver, has_null, header_identity, is_header, state_in_session
from .parts import (
    Part,
    compared_with_constants,
    is_row_of_root,
    is_second_class,
    part_as_mapped,
    takes,
)
from .stored_keys import MAX_PARAMETERS, ask, chunks, compares_in_python, key_in, select_equal_keys
from .unique_keys import RowKey, key_and_values, unique_key
