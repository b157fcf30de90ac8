"""The public operations (apply.py, embedding.py), how a backend is chosen, and the plain torch backend."""
