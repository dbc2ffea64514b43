"""Shared code of the cookbooks: serving, model calls, brief parsing, the offline reflector and acceptance."""
