"""Every kind of mapping, every way to lock, and every change that another session makes meanwhile."""
