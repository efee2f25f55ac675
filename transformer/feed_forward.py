# Written from chapters/3-3-feed-forward.ipynb by chapters/_book/export.py. Edit the chapter.
"""Position-wise feed-forward network (paper section 3.3)."""

__all__ = [
    "FeedForward",
]

from torch import Tensor, nn


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, at every position alike (section 3.3).

    ValueError for a width below 1.
    """

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        for name, width in (("d_model", d_model), ("d_ff", d_ff)):
            if width < 1:
                raise ValueError(f"{name} must be at least 1, not {width}")
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D); each vector along the last dimension is mapped by itself."""
        return self.outer(self.inner(x).relu())
