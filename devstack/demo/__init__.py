"""`make demo`: the whole business once, for real, as its users would do it: CLI, HTTP, `openai`."""
