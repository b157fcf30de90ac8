"""From logits to tokens. Each row depends on its own logits, settings and random state alone, never on its
neighbours."""

from serving.sampling.embedding import embed
from serving.sampling.logprobs import score
from serving.sampling.sampler import sample
from serving.sampling.state import is_plain
from serving.sampling.verify import agreed, verify

__all__ = ["agreed", "embed", "is_plain", "sample", "score", "verify"]
