"""The benchmarks work: figures by name, goals with a verdict, a proxy that counts.  No time is asserted."""
