"""Speed of the beam search, with and without its cache and its batches.

    python tests/benchmarks/beam_search_speed.py [--threads 2] [--sentences 1000] [--clock wall|cpu]

The model has the shape of the "small" preset and random weights; the sources have the lengths of
Multi30k's English test set in 4,000 pieces (mean 14.5). A random model rarely ends a sentence, so
each translation is as long as its source. Contestants: ours; the same search without the cache,
which is what a plain script does; and ours one sentence at a time. The slow ones get every tenth
sentence. At the end, how many translations change when a sentence is translated alone instead of
in a batch, in single and in double precision.
"""

import argparse
import copy
import random
import time

import torch

from transformer.beam_search import Hypothesis, beam_search
from transformer.model import Transformer, TransformerConfig
from transformer.translator import groups


class Uncached(Transformer):
    """Runs the decoder over the whole prefix at every step."""

    class Tokens:
        tokens = None

        def select(self, rows):
            self.tokens = self.tokens[rows]

    def new_cache(self):
        return self.Tokens()

    def decode(self, target, memory, source, cache=None):
        seen = target if cache.tokens is None else torch.cat([cache.tokens, target], dim=1)
        cache.tokens = seen
        return super().decode(seen, memory, source)


def sources_like_multi30k(count: int) -> list[list[int]]:
    draw = random.Random(0)
    lengths = [round(min(40, max(5, draw.lognormvariate(2.6, 0.3)))) for _ in range(count)]
    return [[draw.randrange(4, 4000) for _ in range(n)] + [2] for n in lengths]


def translate(model: Transformer, sources: list[list[int]], max_tokens: int) -> list[Hypothesis]:
    found = {}
    for group in groups(sources, max_tokens):
        rows = [ids + [0] * (len(group[0]) - len(ids)) for ids in group]
        results = beam_search(model, torch.tensor(rows), beam=4, max_extra=0, n_best=1)
        found |= {tuple(ids): one for ids, [one] in zip(group, results, strict=True)}
    return [found[tuple(ids)] for ids in sources]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    config = TransformerConfig.preset("small")
    ours = Transformer(config, torch.Generator().manual_seed(0)).eval()
    uncached = Uncached(config).eval()
    uncached.load_state_dict(ours.state_dict())
    sources = sources_like_multi30k(options.sentences)
    translate(ours, sources[:20], 2000)  # warm-up
    contestants = [
        ("ours", ours, sources, 2000),
        ("without cache", uncached, sources[::10], 2000),
        ("one at a time", ours, sources[::10], 1),
    ]
    print(f"{options.clock} clock, {options.threads} threads, torch {torch.__version__}")
    for name, model, some, max_tokens in contestants:
        began = clock()
        tokens = sum(len(one.tokens) for one in translate(model, some, max_tokens))
        seconds = clock() - began
        print(f"{name:14} {len(some):5} sentences, {tokens:6} tokens, {seconds:6.1f} s, ", end="")
        print(f"{tokens / seconds:6.0f} tokens/s")
    some = sources[:: max(1, len(sources) // 300)]
    for model in (ours, copy.deepcopy(ours).double()):
        pairs = list(zip(translate(model, some, 2000), translate(model, some, 1), strict=True))
        differ = sum(a.tokens != b.tokens for a, b in pairs)
        worst = max(abs(a.score - b.score) for a, b in pairs)
        name = next(model.parameters()).dtype
        print(f"{name}: {differ} of {len(some)} differ alone; scores by at most {worst:.1e}")


if __name__ == "__main__":
    main()
