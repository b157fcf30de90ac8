"""Tests of marketplace.jobs."""
