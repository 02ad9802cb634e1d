"""reset_when_needed(): a connection goes back without a ROLLBACK where there is nothing to undo."""
