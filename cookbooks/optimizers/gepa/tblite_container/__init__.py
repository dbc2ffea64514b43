"""TBLite: solve small terminal tasks with one pipeline."""
