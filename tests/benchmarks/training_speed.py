"""Training speed of our model and loop against the same model built of torch.nn.Transformer.

    python tests/benchmarks/training_speed.py [--threads 2] [--rounds 7] [--clock wall|cpu]

Both have the same widths, tied embeddings, post-norm, dropout and vocabulary, see the same batches
and take whole updates. The peer is what a plain PyTorch script does: nn.Transformer, cross_entropy
(with torch's own label smoothing, and without), Adam as it comes. Rounds alternate between the
contestants, so that a busy machine slows all of them alike; medians are compared. `--clock cpu`
with one thread counts processor time, which a busy machine hardly disturbs. nn.Transformer has
dropout in two places more than the paper, on attention weights and inside the feed-forward
network; the first peer goes without, so that all do the same work.
"""

import argparse
import math
import statistics
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.batches import Batch, collate
from transformer.encoding import sinusoidal_encoding
from transformer.model import Transformer, TransformerConfig, count_parameters
from transformer.training import TrainingConfig, accumulate_gradients, make_optimizer


class Peer(nn.Module):
    """torch.nn.Transformer between one embedding matrix, as the documentation suggests it."""

    def __init__(self, config: TransformerConfig, more_dropout: bool):
        super().__init__()
        self.config = c = config
        self.embedding = nn.Embedding(c.vocab_size, c.d_model)
        nn.init.normal_(self.embedding.weight, std=c.d_model**-0.5)
        self.register_buffer("table", sinusoidal_encoding(512, c.d_model))
        self.dropout = nn.Dropout(c.dropout)
        self.transformer = nn.Transformer(
            c.d_model, c.heads, c.layers, c.layers, c.d_ff, c.dropout, batch_first=True
        )
        for module in self.transformer.modules() if not more_dropout else ():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout = nn.Identity()

    def embed(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * math.sqrt(self.config.d_model)
        return self.dropout(x + self.table[: tokens.size(1)])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        pad = self.config.pad_id
        later = torch.ones(target.size(1), target.size(1), dtype=torch.bool).triu(1)
        x = self.transformer(
            self.embed(source), self.embed(target), tgt_mask=later,
            src_key_padding_mask=source == pad, tgt_key_padding_mask=target == pad,
            memory_key_padding_mask=source == pad, tgt_is_causal=True,
        )
        return F.linear(x, self.embedding.weight)


def peer_update(model: Peer, optimizer: torch.optim.Adam, batch: Batch, smoothing: float) -> None:
    optimizer.zero_grad()
    logits = model(batch.source, batch.target_in)
    F.cross_entropy(
        logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=model.config.pad_id,
        label_smoothing=smoothing,
    ).backward()
    optimizer.step()


def our_update(model: Transformer, optimizer: torch.optim.Adam, batch: Batch) -> None:
    optimizer.zero_grad()
    accumulate_gradients(model, [batch], 0.1)
    optimizer.step()


def make_batches(config: TransformerConfig, max_tokens: int, count: int) -> list[Batch]:
    """Batches of sentences of 10 to 25 pieces, of like length, as Multi30k has them."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for i in range(count):
        longest = 10 + 15 * i // max(count - 1, 1)
        draw = torch.randint(3, config.vocab_size, (max_tokens // (longest + 1), 2, longest),
                             generator=generator)
        cuts = torch.randint(longest - 2, longest + 1, (len(draw), 2), generator=generator)
        pairs = [tuple(row[:n].tolist() for row, n in zip(pair, cut, strict=True))
                 for pair, cut in zip(draw, cuts, strict=True)]
        batches.append(collate(pairs, config.pad_id, config.bos_id, config.eos_id))
    return batches


def contestants(config: TransformerConfig) -> dict:
    torch.manual_seed(0)
    ours, peers = Transformer(config).train(), [Peer(config, more) for more in (False, True)]
    adam = make_optimizer(ours, TrainingConfig())
    adams = [torch.optim.Adam(peer.parameters(), betas=(0.9, 0.98), eps=1e-9) for peer in peers]
    for optimizer in (adam, *adams):
        optimizer.param_groups[0]["lr"] = 1e-4
    print(f"parameters: ours {count_parameters(ours):,}, peer {count_parameters(peers[0]):,}")
    return {
        "ours": lambda batch: our_update(ours, adam, batch),
        "peer, the same dropouts": lambda batch: peer_update(peers[0], adams[0], batch, 0.1),
        "peer as it comes": lambda batch: peer_update(peers[1], adams[1], batch, 0.1),
        "peer, plain loss": lambda batch: peer_update(peers[1], adams[1], batch, 0.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--preset", default="small")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=2048, help="positions of a batch, a side")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    config = TransformerConfig.preset(options.preset)
    batches = make_batches(config, options.tokens, 4)
    tokens = sum(batch.target_tokens for batch in batches)
    updates = contestants(config)
    seconds = {name: [] for name in updates}
    for _ in range(options.rounds + 1):
        for name, update in updates.items():
            began = clock()
            for batch in batches:
                update(batch)
            seconds[name].append(clock() - began)
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    for name, median in medians.items():
        print(f"{name:24} {tokens / median:8,.0f} target tokens/s ({options.clock} clock), "
              f"ours is {median / medians['ours']:.2f} times as fast")


if __name__ == "__main__":
    main()
