"""Functions that run when the locks are gone, or never."""
