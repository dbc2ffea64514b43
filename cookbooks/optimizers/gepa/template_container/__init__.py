"""A template task to copy, with everything that a first run needs."""
