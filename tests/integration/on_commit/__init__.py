"""What is done when the locks are gone, or never."""
