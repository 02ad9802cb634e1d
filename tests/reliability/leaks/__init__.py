"""Many locks and failures leave nothing behind."""
