"""The comparison with a reference: the layer at which our numbers leave those of transformers."""
