"""The core: locks a document on five databases and reads it fresh, without the features."""
