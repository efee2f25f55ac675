"""The Transformer of Attention Is All You Need."""
from transformer.model import PRESETS, Transformer, TransformerConfig
