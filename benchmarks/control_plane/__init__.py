"""Costs of a fleet for the web processes and the database: simulated replicas on real fleet links."""
