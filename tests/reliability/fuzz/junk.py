"""Values that a program may give by mistake, in place of anything."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from tests.sql.models import Line, Order


class Unmapped:
    """No entity, and no key."""


JUNK: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**70, 0.5, math.nan, math.inf, -math.inf, Decimal(1)),
    *("", "x", "\0", "\ud800", b"x", (), (None,), (1, None), [1], {}, {"id": 1}, {"x": 1}, {1}),
    *(range(2), iter(()), object(), int, Unmapped, Unmapped(), Order, Order.id, Line.order, len),
)
