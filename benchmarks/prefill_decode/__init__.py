"""KV that one replica computes and another pulls over loopback (docs/prefill-decode.md)."""
