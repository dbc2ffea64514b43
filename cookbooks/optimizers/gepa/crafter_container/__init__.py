"""The Crafter cookbook: a container, its policies, and its reflector."""
