"""explore(): runs two functions in all orders of their statements, on the real database."""

from .explorer import explore
from .result import Exploration, Failure

__all__ = ["Exploration", "Failure", "explore"]
