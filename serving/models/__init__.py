"""The llama family in torch: configuration, weights, rotary embedding, forward pass, GGUF conversion."""
