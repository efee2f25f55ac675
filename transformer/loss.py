# Written from chapters/5-4-regularization.ipynb by chapters/_book/export.py. Edit the chapter.
"""Label smoothing: the loss that training minimises (paper section 5.4)."""

__all__ = [
    "SmoothedCrossEntropy",
    "smoothed_and_plain",
    "smoothed_cross_entropy",
]

import torch
from torch import Tensor


class SmoothedCrossEntropy(torch.autograd.Function):
    """The loss and, in the same pass, its gradient p - q, in the one (N, V) tensor it makes."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, keep: Tensor, eps: float):
        """(N, V), (N,), (N,) bool -> smoothed and plain loss, summed over the rows to keep."""
        other = eps / max(logits.size(-1) - 1, 1)
        index = targets[:, None]
        p = logits.float().log_softmax(dim=-1)
        true = p.gather(1, index)[:, 0]
        smoothed = (other - (1 - eps)) * true
        if eps:
            smoothed = smoothed - other * p.sum(dim=-1)
        if ctx.needs_input_grad[0]:
            p.exp_().sub_(other).masked_fill_(~keep[:, None], 0.0)
            p.scatter_add_(1, index, ((other - (1 - eps)) * keep)[:, None])
            ctx.save_for_backward(p)
            ctx.dtype = logits.dtype
        plain = -true.masked_fill(~keep, 0.0).sum()
        ctx.mark_non_differentiable(plain)
        return smoothed.masked_fill(~keep, 0.0).sum(), plain

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor, _):
        (difference,) = ctx.saved_tensors
        # In place: a second backward through the same graph is refused by autograd.
        return difference.mul_(grad).to(ctx.dtype), None, None, None


def smoothed_and_plain(
    logits: Tensor, targets: Tensor, pad_id: int, label_smoothing: float = 0.1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the smoothed loss, the plain one (without a gradient) and the number of targets.

    As `smoothed_cross_entropy`, which leaves the plain loss out.
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be in [0, 1), not {label_smoothing}")
    keep = (targets != pad_id).flatten()
    # A padded row is given class 0: its loss is dropped, and pad_id need not be a class.
    classes = targets.flatten().masked_fill(~keep, 0)
    sums = SmoothedCrossEntropy.apply(logits.flatten(0, -2), classes, keep, label_smoothing)
    return *sums, keep.sum()


def smoothed_cross_entropy(
    logits: Tensor, targets: Tensor, pad_id: int, label_smoothing: float = 0.1
) -> tuple[Tensor, Tensor]:
    """Return the loss in nats summed over non-pad targets, and their number (section 5.4).

    logits (..., V) of any float type, targets (...) of ids. The target distribution has
    1 - label_smoothing on the true token and label_smoothing / (V - 1) on each other; positions
    whose target is `pad_id` count nowhere. Divide by the number, over all batches of an update,
    for the loss per token. Computed in fp32. ValueError for a label_smoothing outside [0, 1).
    """
    smoothed, _, tokens = smoothed_and_plain(logits, targets, pad_id, label_smoothing)
    return smoothed, tokens
