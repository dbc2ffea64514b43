"""Tests of the trackers, with the real packages and without any network."""
