"""A transaction that is run again: run_transaction, its async twin, @transactional."""
