"""`make demo`: the whole business once, for real, through the tools of its users: CLI, HTTP, `openai`."""
