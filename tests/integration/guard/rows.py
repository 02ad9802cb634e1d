"""The rows that each test begins with: documents 1 and 2 of each kind, but for memos."""

from __future__ import annotations

from typing import Any

from tests.integration.guard.models import Base
from tests.support.refill import Refill

_ROWS: dict[str, list[dict[str, Any]]] = {
    "gd_customer": [{"id": 1, "name": "Ann"}, {"id": 2, "name": "Ben"}],
    "gd_order": [
        {"id": 1, "total": 30, "customer_id": 1},
        {"id": 2, "total": 5, "customer_id": 1},
    ],
    "gd_comment": [{"id": 1, "order_id": 1, "text": "late"}],
    "gd_line": [
        {"id": 1, "order_no": 1, "value": 10},
        {"id": 2, "order_no": 1, "value": 20},
        {"id": 3, "order_no": 2, "value": 5},
    ],
    "gd_tax": [{"id": 1, "line_id": 1, "rate": 7}, {"id": 3, "line_id": 3, "rate": 19}],
    "gd_tag": [{"id": 1, "name": "both"}, {"id": 2, "name": "second"}, {"id": 3, "name": "none"}],
    "gd_order_tag": [
        {"order_id": 1, "tag_id": 1},
        {"order_id": 2, "tag_id": 1},
        {"order_id": 2, "tag_id": 2},
    ],
    "gd_project": [{"id": 1}, {"id": 2}],
    "gd_plan": [{"id": 1, "project_id": 1}, {"id": 2, "project_id": 2}],
    "gd_step": [
        {"id": 1, "plan_id": 1, "parent_id": None},
        {"id": 2, "plan_id": 2, "parent_id": None},
        {"id": 11, "plan_id": None, "parent_id": 1},
        {"id": 111, "plan_id": None, "parent_id": 11},
    ],
    "gd_voucher": [{"year": 2024, "number": 1}, {"year": 2024, "number": 2}],
    "gd_entry": [
        {"id": 1, "year": 2024, "number": 1, "value": 30},
        {"id": 2, "year": 2024, "number": 2, "value": 5},
    ],
    "gd_terms": [{"id": 1, "text": "net"}, {"id": 2, "text": "gross"}],
    "gd_contract": [
        {"id": 1, "kind": "lease", "terms_id": 1},
        {"id": 2, "kind": "contract", "terms_id": 2},
    ],
    "gd_lease": [{"id": 1, "rent": 100}],
    "gd_seal": [{"id": 1, "contract_id": 1, "text": "red"}],
    "gd_ticket": [
        {"id": 1, "kind": "fault"},
        {"id": 2, "kind": "fault"},
        {"id": 3, "kind": "ticket"},
    ],
    "gd_patient": [{"id": 1}],
    "gd_work": [
        {"id": 1, "kind": "repair", "fault_id": 1, "patient_id": None},
        {"id": 2, "kind": "repair", "fault_id": 2, "patient_id": None},
        {"id": 3, "kind": "work", "fault_id": None, "patient_id": None},
        {"id": 4, "kind": "visit", "fault_id": None, "patient_id": 1},
    ],
    "gd_shelf": [{"id": 1}, {"id": 2}],
    "gd_book": [{"id": 1, "shelf_id": 1}, {"id": 2, "shelf_id": 2}],
    "gd_budget": [{"id": 1, "code": "a"}, {"id": 2, "code": "b"}],
    "gd_post": [{"id": 1, "code": "a"}, {"id": 2, "code": "b"}],
    "gd_archive": [{"id": 1}, {"id": 2}],
    "gd_country": [{"code": "aa"}, {"code": "bb"}],
    "gd_city": [{"id": 1, "code": "aa"}, {"id": 2, "code": "bb"}],
    "gd_river": [{"id": 1, "code": "aa"}, {"id": 2, "code": "bb"}],
    "gd_box": [{"id": 1, "archive_id": 1}, {"id": 2, "archive_id": 2}],
}


refill = Refill(
    Base.metadata,
    {Base.metadata.tables[name]: rows for name, rows in _ROWS.items()},
    first=[Base.metadata.tables["gd_step"].update().values(parent_id=None)],
)
