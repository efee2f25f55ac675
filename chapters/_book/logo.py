"""Draw the book's logo and icon: `python chapters/_book/logo.py`.

The mark is a causal attention map. Row i is a query, column j a key; a square is as dark as the
weight softmax gives it, and nothing stands above the diagonal.
"""

import math
from pathlib import Path

STATIC = Path(__file__).resolve().parent / "static"
SIZE, STEP, INK = 5, 20, "#e8590c"
# Scores picked by eye, one row for each query; a row's weights are their softmax.
SCORES = [[0.0], [0.2, 0.6], [1.4, 0.0, 0.5], [0.0, 1.5, 0.2, 0.8], [0.9, 0.1, 0.0, 1.6, 0.5]]


def squares(x: float, y: float, step: float) -> str:
    """Return the map's squares, its upper left corner at (x, y)."""
    marks = []
    for i, scores in enumerate(SCORES):
        total = sum(math.exp(score) for score in scores)
        for j, score in enumerate(scores):
            weight = math.exp(score) / total
            opacity = 0.25 + 0.75 * min(1.0, 1.6 * weight)
            left, top, side = x + j * step, y + i * step, 0.86 * step
            marks.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{side:.1f}" height="{side:.1f}" '
                f'rx="{0.14 * step:.1f}" fill="{INK}" fill-opacity="{opacity:.2f}"/>'
            )
    return "\n".join(marks)


def drawing(width: float, height: float, content: str) -> str:
    box = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">\n{content}\n</svg>\n'


def main() -> None:
    side = SIZE * STEP
    mark = drawing(side, side, squares(1.4, 1.4, STEP))
    (STATIC / "logo.svg").write_text(mark, encoding="utf-8")
    (STATIC / "favicon.svg").write_text(mark, encoding="utf-8")


if __name__ == "__main__":
    main()
