"""Tests of the standing service over HTTP, and of its Python client against it."""
