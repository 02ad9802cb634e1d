"""Histories of reads and writes, checked afterwards for anomalies by their names."""
