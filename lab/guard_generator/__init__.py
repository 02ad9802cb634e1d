"""Random writes to random models: which the guard misses, and which it refuses needlessly."""
