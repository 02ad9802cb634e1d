"""Documents: the header row, the parts, and the way from a row to its header."""

from .declare import (
    any_declared,
    chain_of,
    declared_roots,
    document,
    document_root,
    listen_for_documents,
    parts_of,
    parts_with_detail,
)
from .mapping import (
    clear_with_mappers,
    document_key,
    has_subquery,
    header_table,
    identity_of,
    key_attributes,
    lockable_root,
    mapper_cache,
    mapper_of,
    own_table,
    root_of,
    spans_rows,
    tables_of,
    tables_within,
)
from .owners import UNKNOWN, HeaderResolver, has_null, header_identity, is_header, loaded_headers
from .parts import Part
