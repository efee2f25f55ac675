# Written from chapters/5-3-optimizer.ipynb by chapters/_book/export.py. Edit the chapter.
"""The learning rate of each update (paper section 5.3)."""

__all__ = [
    "learning_rate",
]

def learning_rate(step: int, d_model: int, warmup_steps: int, scale: float = 1.0) -> float:
    """Return scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (section 5.3).

    `step` is the number of the update that uses this rate, from 1. ValueError for a step, a
    width or a warm-up below 1.
    """
    if step < 1:
        raise ValueError(f"updates are counted from 1: step {step} has no learning rate")
    if d_model < 1 or warmup_steps < 1:
        raise ValueError(f"d_model {d_model} and warmup_steps {warmup_steps} must be at least 1")
    return scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
