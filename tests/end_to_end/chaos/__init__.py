"""Bad luck for a fleet: three real replicas under load, faults of their machines, and an audit of every prediction."""
