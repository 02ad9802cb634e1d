"""The features of a session: each joins the locks and the transaction by the hooks of a SessionPart.

A LockingSession imports ``install``, which imports each feature when a session first uses it.  The
core imports none.
"""

from .install import OF_DOCUMENTS_ALONE, PartOptions, install_parts, options_of_all
