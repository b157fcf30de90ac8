"""Tests of the sealed package format, key wraps, leases, the release log and strict intake."""
