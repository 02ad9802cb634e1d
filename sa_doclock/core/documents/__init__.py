"""Documents: the header row, the parts, and the way from a row to its header."""

from .declare import (
    any_declared,
    any_versioned,
    chain_of,
    declared_roots,
    document,
    document_root,
    has_checkouts,
    is_versioned,
    keeps_key,
    listen_for_documents,
    notify_in_time,
    parts_of,
    parts_with_detail,
)
from .key_values import key_value
from .mapping import (
    clear_with_mappers,
    columns_read,
    document_key,
    from_clauses_within,
    has_expired,
    has_subquery,
    header_table,
    hierarchy_of,
    identity_of,
    index_of_key,
    key_attributes,
    key_order,
    loaded_mappers,
    lockable_root,
    mapper_cache,
    mapper_of,
    own_table,
    plain_key_type,
    root_of,
    row_order,
    some_key,
    spans_rows,
    tables_of,
    tables_within,
    unread_columns,
)
from .owners import (
    UNKNOWN,
    HeaderResolver,
    has_null,
    header_identity,
    is_header,
    loaded_headers,
    loaded_owner,
)
from .parts import Part, takes
from .roles import is_row_of_root, is_second_class, kind_attribute, kinds_of
from .stored_keys import compares_in_python, select_equal_keys, select_stored_keys
from .tables import roots_of_table
