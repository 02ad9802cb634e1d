"""The version of a document: compared after the lock, raised by a change of a part."""
