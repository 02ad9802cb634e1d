"""The shared part of the benchmarks: databases, paired measurements, a proxy with latency, figures."""
