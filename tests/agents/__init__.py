"""Agent frameworks and OpenAI's package, unmodified, and the MCP server: each against a real gateway."""
