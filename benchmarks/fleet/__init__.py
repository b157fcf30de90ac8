"""A simulated fleet that is routed by the shipped code of `routing/`."""
