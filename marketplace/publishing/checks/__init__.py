"""The automatic checks: pure functions of values. Each finding says in a sentence why a person must look."""
