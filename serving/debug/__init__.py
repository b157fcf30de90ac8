"""Looking inside: where a step's time went (trace), and where its numbers leave the reference (layers)."""
