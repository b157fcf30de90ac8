"""This machine as a platform: PostgreSQL, Valkey and every process, supervised. Runs from a clone, is in no wheel."""
