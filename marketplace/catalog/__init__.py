"""Models for sale, their immutable versions, prices and measured evaluations."""
