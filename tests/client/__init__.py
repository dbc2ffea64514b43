"""Tests of the client of the service."""
