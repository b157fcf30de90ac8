"""What a fleet costs the web processes and the database: simulated replicas on real fleet links."""
