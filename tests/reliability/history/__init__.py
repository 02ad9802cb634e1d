"""What transactions have read and written, checked afterwards for anomalies by their names."""
