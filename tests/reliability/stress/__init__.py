"""The stress fixture as the acceptance test."""
