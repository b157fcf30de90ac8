"""GPU kernels of the forward pass around the matrix products, in Triton: one operation per file, no synchronisation."""
