"""The common part of the benchmarks: databases, paired measurements, a wire with a latency, figures."""
