"""Work that is shared: claim_each() locks each row for one worker, and looks at it again."""

from .each import Claims, claim_each
from .loop import ClaimLoop, OnError, check_factory
from .report import ClaimReport, FailedClaim
from .turns import Claim

__all__ = [
    "Claim",
    "ClaimLoop",
    "ClaimReport",
    "Claims",
    "FailedClaim",
    "OnError",
    "check_factory",
    "claim_each",
]
