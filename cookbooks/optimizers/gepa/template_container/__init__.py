"""A task to copy, with all that a first run of it needs."""
