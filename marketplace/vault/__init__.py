"""Keys: platform keys, creators' keys, wrapped data keys, replicas, leases, and the hash-chained release log."""
