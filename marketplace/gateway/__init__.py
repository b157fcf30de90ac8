"""The metered hot path (/v1): a raw ASGI app that authorizes, dispatches, streams and settles predictions."""
