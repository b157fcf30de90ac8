"""Tests of strict intake."""
