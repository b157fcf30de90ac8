"""Gains of speculation: tokens a step, and predictions a second beside the same replica without it."""
