"""Search of the catalogue: recall of its methods, and its speed with many listings."""
