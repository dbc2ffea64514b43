"""Tests of the service as strangers meet it."""
