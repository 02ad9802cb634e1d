"""What is left of many locks and failures: nothing."""
