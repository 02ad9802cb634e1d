"""Reports of a server's locks: who holds them, and who waits."""

from .lock_waits import lock_waits, missing_privilege
