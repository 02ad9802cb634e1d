"""skip_redundant_rollback(): a connection goes back without a ROLLBACK where there is nothing to undo."""
