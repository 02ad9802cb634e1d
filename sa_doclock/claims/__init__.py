"""Rows shared by many workers: claim_each() locks each row for one of them and checks it again."""

from .claim_each import claim_each, claims_of
from .each import Claims, OnError
from .leases import FIVE_MINUTES, Lease, Leases, Schedule, lease_each
from .report import ClaimReport, FailedClaim
from .sessions import check_factory
from .transaction import Claim
