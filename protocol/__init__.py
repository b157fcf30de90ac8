"""Everything that crosses a process boundary, once: messages as typed values, their checks and their encodings.

The gateway, the vault, the serving tier and the command line import it; it imports none of them, neither Django nor
torch. `docs/protocol.md` is its page. `names`, `encoding` and `request_ids` need the standard library alone, so that
the command line starts quickly.
"""
