"""Tests of marketplace/access."""
