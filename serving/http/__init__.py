"""The OpenAI-compatible front: parse, authorize, submit, stream. No torch, no policy."""
