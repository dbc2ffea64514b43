"""TBLite: the task is to solve small jobs at a terminal with one pipeline."""
