"""The public operations, one per file; what a backend is and how one is chosen; the plain torch backend."""
