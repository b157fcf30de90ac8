"""The platform as its staff run it: status page with probes, the fleet, suspensions, refunds.

docs/operations.md is the page for operators.
"""
