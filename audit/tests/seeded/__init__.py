"""audit(), on programs that are wrong and on programs that are right."""
