# Written from chapters/5-2-hardware.ipynb by chapters/_book/export.py. Edit the chapter.
"""What training costs, in floating-point operations (paper sections 5.2 and 6.1)."""

__all__ = [
    "forward_flops",
    "paper_flops",
    "projection_flops",
    "score_flops",
    "training_flops",
]

from transformer.model import TransformerConfig


def projection_flops(config: TransformerConfig) -> dict[str, tuple[int, int]]:
    """Return {kind of sub-layer: (FLOPs of a source token, of a target token)}, forward only.

    A product of n x a and a x b is 2nab operations; nothing but products with weights is counted.
    """
    c = config
    attention = 4 * c.d_model * c.heads * (c.d_k + c.d_v) * c.layers
    feed_forward = 4 * c.d_model * c.d_ff * c.layers
    return {
        "self-attention": (attention, attention),
        # Keys and values are made of source tokens, queries and outputs of target tokens.
        "cross-attention": (attention // 2, attention // 2),
        "feed-forward": (feed_forward, feed_forward),
        "pre-softmax": (0, 2 * c.d_model * c.vocab_size),
    }


def score_flops(
    config: TransformerConfig, source_length: float, target_length: float
) -> tuple[float, float]:
    """Return the FLOPs of scores and weighted sums, of a source and of a target token, forward.

    The lengths are numbers of tokens in a sentence, paddings included where they are computed.
    """
    per_key = 2 * config.heads * (config.d_k + config.d_v) * config.layers
    return per_key * source_length, per_key * (target_length + source_length)


def forward_flops(
    config: TransformerConfig,
    source_tokens: float,
    target_tokens: float,
    source_length: float = 0,
    target_length: float = 0,
) -> float:
    """Return the operations of one forward pass over so many tokens (section 6.1).

    With sentence lengths the attention scores are counted too, exactly when all sentences have
    these lengths; without, only products with weights.
    """
    source, target = score_flops(config, source_length, target_length)
    for of_source, of_target in projection_flops(config).values():
        source, target = source + of_source, target + of_target
    return source * source_tokens + target * target_tokens


def training_flops(
    config: TransformerConfig,
    source_tokens: float,
    target_tokens: float,
    source_length: float = 0,
    target_length: float = 0,
) -> float:
    """Return the operations of training on so many tokens: three times a forward pass.

    Backward takes two products for each one forward: a gradient for either factor.
    """
    return 3 * forward_flops(config, source_tokens, target_tokens, source_length, target_length)


def paper_flops(hours: float, gpus: int, tflops: float) -> float:
    """Return time x GPUs x sustained TFLOPS, as the paper counts (section 6.1)."""
    return hours * 3600 * gpus * tflops * 1e12
