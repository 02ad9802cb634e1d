"""What the benchmarks share: databases, paired measurements, a wire with a latency, figures."""
