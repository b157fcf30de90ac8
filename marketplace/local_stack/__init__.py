"""The platform on one machine: PostgreSQL, Valkey, every process, supervised; `make run` and `make demo`."""
