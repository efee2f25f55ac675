# Written from chapters/using-it.ipynb by chapters/_book/export.py. Edit the chapter.
"""The Transformer of Attention Is All You Need: the library that the book writes."""

__all__ = [
    "PRESETS",
    "Transformer",
    "TransformerConfig",
    "Translator",
    "attention",
    "beam_search",
    "encoding",
    "loss",
    "masks",
    "schedule",
]

from transformer import attention, beam_search, encoding, loss, masks, schedule  # noqa: F401
from transformer.model import PRESETS, Transformer, TransformerConfig  # noqa: F401
from transformer.translator import Translator  # noqa: F401
