"""Documents: what belongs together is locked and read together."""
