"""The features of a session: each joins the locks and the transaction by the hooks of a SessionPart.

The core imports ``install`` alone, which imports a feature for a session that asks for it.
"""

from .install import install_parts, options_of_all
