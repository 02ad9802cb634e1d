"""DocumentGate: who queues before the pool, in which order, and when a place is given up."""
