"""The core: a document locked on five databases and read fresh, without the features."""
