"""The write guard: declared documents are written under their lock, or not at all."""
