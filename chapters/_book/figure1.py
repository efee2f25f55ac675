"""Figure 1 of the paper, drawn by us: `from _book.figure1 import draw_architecture` in a chapter.

Lengths are inches, and data flows upward as in the paper. Every arrow, bypass and frame takes its
place from the boxes beside it, so that a change of one height moves all that stands above.
"""

import math

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch

INK, FRAME, CROSS = "#1f2933", "#f1f3f5", "#b4441a"
EMBEDDING, ATTENTION, FEED_FORWARD = "#fbd5d5", "#fed7aa", "#bfdbfe"
NORM, LINEAR, SOFTMAX = "#fef3b4", "#ddd6fe", "#c6ecd0"
ENCODER, DECODER, WIDTH, SPREAD = 1.95, 4.50, 1.44, 0.46
SIZE = (6.4, 8.2)

Point = tuple[float, float]


def box(axes: Axes, x: float, y: float, text: str, colour: str) -> float:
    """Draw a box whose bottom centre is (x, y), as high as its text needs; return its top."""
    height = 0.19 * (text.count("\n") + 1) + 0.12
    place, style = (x - WIDTH / 2, y), "round,pad=0,rounding_size=0.07"
    patch = FancyBboxPatch(place, WIDTH, height, style, fc=colour, ec=INK, lw=1.1, zorder=3)
    axes.add_patch(patch)
    words(axes, x, y + height / 2, text)
    return y + height


def words(axes: Axes, x: float, y: float, text: str, align: str = "center", size=12) -> None:
    axes.text(x, y, text, ha=align, va="center", size=size, color=INK, zorder=5, linespacing=1.1)


def path(axes: Axes, *points: Point, head: bool = True, colour: str = INK) -> None:
    """Draw a line through the points, with an arrow head at its end."""
    xs, ys = zip(*points, strict=True)
    axes.plot(xs, ys, color=colour, lw=1.2, solid_joinstyle="round", zorder=2)
    if head:
        style = {"arrowstyle": "-|>", "color": colour, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", points[-1], points[-2], arrowprops=style, zorder=2)


def add_and_norm(axes: Axes, x: float, start: float, inner: float, top: float, side: int) -> float:
    """Close a sub-layer: the residual path on `side`, then Add & Norm; return the norm's top."""
    norm = box(axes, x, top + 0.09, "Add & norm", NORM)
    path(axes, (x, top), (x, top + 0.09), head=False)
    outer, middle = x + side * (WIDTH / 2 + 0.17), (top + 0.09 + norm) / 2
    tap = start + 0.11
    end = (x + side * WIDTH / 2, middle)
    path(axes, (x, start), (x, tap), (outer, tap), (outer, middle), end)
    return norm


def self_attention(axes: Axes, x: float, start: float, text: str, side: int) -> float:
    """Draw a self-attention sub-layer: V, K and Q come from the same stream."""
    split, inner = start + 0.25, start + 0.47
    for shift in (-SPREAD, 0.0, SPREAD):
        path(axes, (x, start), (x, split), (x + shift, split), (x + shift, inner))
    top = box(axes, x, inner, text, ATTENTION)
    return add_and_norm(axes, x, start, inner, top, side)


def feed_forward(axes: Axes, x: float, start: float, side: int) -> float:
    inner = start + 0.33
    path(axes, (x, start), (x, inner))
    top = box(axes, x, inner, "Feed\nforward", FEED_FORWARD)
    return add_and_norm(axes, x, start, inner, top, side)


def cross_attention(axes: Axes, start: float, memory: Point) -> float:
    """Draw the decoder's attention over the encoder: Q is the decoder's, K and V are not."""
    x, inner, level = DECODER, start + 0.66, start + 0.42
    path(axes, (x, start), (x, start + 0.25), (x + SPREAD, start + 0.25), (x + SPREAD, inner))
    between, lift = (ENCODER + DECODER) / 2 - 0.04, memory[1] + 0.36
    route = [memory, (ENCODER, lift), (between, lift), (between, level)]
    for shift in (-SPREAD, 0.0):
        path(axes, *route, (x + shift, level), (x + shift, inner), colour=CROSS)
    for letter, shift in zip("VKQ", (-SPREAD, 0.0, SPREAD), strict=True):
        words(axes, x + shift + 0.1, inner - 0.11, letter, size=9)
    top = box(axes, x, inner, "Multi-head\nattention", ATTENTION)
    return add_and_norm(axes, x, start, inner, top, side=1)


def entrance(axes: Axes, x: float, tokens: str, embedding: str, side: int) -> float:
    """Draw tokens, embedding and the sum with the positional encoding; return where it ends."""
    words(axes, x, 0.26, tokens)
    path(axes, (x, 0.46), (x, 0.68))
    top = box(axes, x, 0.68, embedding, EMBEDDING)
    y, wave = top + 0.29, x + side * 0.62
    path(axes, (x, top), (x, y - 0.12))
    path(axes, (wave, y), (x + side * 0.12, y))
    for centre, radius in ((x, 0.12), (wave, 0.19)):
        axes.add_patch(Circle((centre, y), radius, fc="white", ec=INK, lw=1.1, zorder=3))
    words(axes, x, y, "+", size=13)
    steps = [i / 20 for i in range(-20, 21)]
    heights = [y + 0.1 * math.sin(math.pi * step) for step in steps]
    axes.plot([wave + 0.15 * step for step in steps], heights, color=INK, lw=1.1, zorder=4)
    align = "right" if side < 0 else "left"
    words(axes, wave + side * 0.25, y, "Positional\nencoding", align, size=11)
    return y + 0.12


def frame(axes: Axes, x: float, bottom: float, top: float, side: int) -> None:
    """Draw the frame around one layer, wider where the residual paths run."""
    near, far = x - side * (WIDTH / 2 + 0.14), x + side * (WIDTH / 2 + 0.31)
    place, style = (min(near, far), bottom), "round,pad=0,rounding_size=0.15"
    patch = FancyBboxPatch(
        place, abs(far - near), top - bottom, style, fc=FRAME, ec=INK, lw=1.1, zorder=0
    )
    axes.add_patch(patch)
    align = "right" if side < 0 else "left"
    words(axes, far + side * 0.08, (bottom + top) / 2, "$N\\times$", align, 15)


def encoder(axes: Axes) -> Point:
    """Draw the left half; return where its output leaves."""
    start = entrance(axes, ENCODER, "Inputs", "Input\nembedding", side=-1)
    bottom = start + 0.14
    path(axes, (ENCODER, start), (ENCODER, bottom), head=False)
    top = self_attention(axes, ENCODER, bottom, "Multi-head\nattention", side=-1)
    top = feed_forward(axes, ENCODER, top, side=-1)
    frame(axes, ENCODER, bottom, top + 0.16, side=-1)
    return ENCODER, top


def decoder(axes: Axes, memory: Point) -> None:
    """Draw the right half, up to the probabilities."""
    tokens = "Outputs\n(shifted right)"
    start = entrance(axes, DECODER, tokens, "Output\nembedding", side=1)
    bottom = start + 0.14
    path(axes, (DECODER, start), (DECODER, bottom), head=False)
    top = self_attention(axes, DECODER, bottom, "Masked\nmulti-head\nattention", side=1)
    top = cross_attention(axes, top, memory)
    top = feed_forward(axes, DECODER, top, side=1)
    frame(axes, DECODER, bottom, top + 0.16, side=1)
    for text, colour, gap in (("Linear", LINEAR, 0.4), ("Softmax", SOFTMAX, 0.22)):
        path(axes, (DECODER, top), (DECODER, top + gap))
        top = box(axes, DECODER, top + gap, text, colour)
    path(axes, (DECODER, top), (DECODER, top + 0.22))
    words(axes, DECODER, top + 0.44, "Output\nprobabilities")


def draw_architecture() -> Figure:
    """Draw the Transformer: the encoder on the left, the decoder on the right (figure 1)."""
    figure = plt.figure(figsize=SIZE, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, SIZE[0]), ylim=(0, SIZE[1]), aspect="equal")
    axes.axis("off")
    decoder(axes, memory=encoder(axes))
    return figure
