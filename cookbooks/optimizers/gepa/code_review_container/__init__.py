"""The code review cookbook."""
