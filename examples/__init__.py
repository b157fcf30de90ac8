"""The three sample creators: data generators, training script and trained adapters. Imports no other part."""
