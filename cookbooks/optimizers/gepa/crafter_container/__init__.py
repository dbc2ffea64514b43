"""The Crafter cookbook: a container, its offline policy, and how its prompts are improved."""
