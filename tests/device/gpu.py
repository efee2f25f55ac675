"""Everything that needs a GPU, checked and measured once: `python tests/device/gpu.py OUT.json`.

Meant to take under eight minutes on one GPU. Each check raises when it fails; what failed and every
figure measured go to the JSON file. `--rehearse` runs the same code small on a CPU.
"""

import argparse
import contextlib
import os
import tempfile
import time
import traceback
from pathlib import Path

import torch
from torch import nn

from transformer import Transformer, TransformerConfig
from transformer.__main__ import main as command
from transformer.attention import fused_attention, scaled_dot_product_attention
from transformer.batches import Batch
from transformer.beam_search import beam_search
from transformer.checkpoints import list_checkpoints
from transformer.results import environment, load_results, write_result
from transformer.training import TrainingConfig, accumulate_gradients, make_optimizer, train

# What cuBLAS wants in deterministic mode; it is read when the first handle is made.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


class Setting:
    """Where to run, and how large."""

    def __init__(self, rehearse: bool):
        self.device = torch.device("cpu" if rehearse else "cuda")
        preset = "tiny" if rehearse else "base"
        self.vocab = 500 if rehearse else 37000
        self.config = TransformerConfig.preset(preset, vocab_size=self.vocab)
        self.rows, self.length = (4, 16) if rehearse else (400, 64)
        self.steps = 2 if rehearse else 20
        self.limits = ["--steps", "4"] if rehearse else []

    def model(self, **changes) -> Transformer:
        config = TransformerConfig(**{**vars(self.config), **changes})
        return Transformer(config, torch.Generator().manual_seed(0)).to(self.device)

    def batch(self, rows: int | None = None) -> Batch:
        draw = torch.Generator().manual_seed(1)
        shape = (rows or self.rows, self.length)
        source, target = (torch.randint(3, self.vocab, shape, generator=draw) for _ in range(2))
        source[1::2, -self.length // 4 :] = 0
        target_in = torch.cat([torch.ones(shape[0], 1, dtype=torch.long), target[:, :-1]], 1)
        return Batch(source, target_in, target, target.numel()).to(self.device)

    def seconds(self, function, times: int) -> float:
        """Seconds a call takes, after two to warm up."""
        for _ in range(2):
            function()
        self.wait()
        began = time.perf_counter()
        for _ in range(times):
            function()
        self.wait()
        return (time.perf_counter() - began) / times

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def fused_equals_explicit(setting: Setting) -> dict:
    """Value and gradient in every precision against float64, dead rows included."""
    worst = {}
    for dtype, bound in {torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float16: 1e-2}.items():
        draw = torch.Generator().manual_seed(0)
        exact = [torch.randn(2, 8, 33, 64, generator=draw).to(setting.device) for _ in range(3)]
        mask = torch.ones(33, 33, dtype=torch.bool, device=setting.device).tril()
        mask[5] = False
        errors = []
        for attend in (fused_attention, lambda *x: scaled_dot_product_attention(*x)[0]):
            inputs = [x.to(dtype).clone().requires_grad_() for x in exact]
            truth = [x.detach().double().requires_grad_() for x in inputs]
            out = attend(*inputs, mask)
            out.float().sum().backward()
            right = scaled_dot_product_attention(*truth, mask)[0]
            right.sum().backward()
            assert out[:, :, 5].abs().max() == 0
            pairs = [(out, right)] + [(x.grad, y.grad) for x, y in zip(inputs, truth, strict=True)]
            for got, want in pairs:
                assert got.isfinite().all()
                errors.append(((got.double() - want).abs().max() / want.abs().max()).item())
        worst[str(dtype)] = max(errors)
        assert worst[str(dtype)] < bound, (dtype, errors)
    return worst


def causal_and_cached(setting: Setting) -> dict:
    """A later token changes nothing earlier; the cache gives what teacher forcing gives."""
    model, batch = setting.model().eval(), setting.batch(4)
    with torch.no_grad():
        full = model(batch.source, batch.target_in)
        changed = batch.target_in.clone()
        changed[:, 9] += 1
        leak = (model(batch.source, changed) - full)[:, :9].abs().max().item()
        memory, cache = model.encode(batch.source), model.new_cache()
        steps = [
            model.decode(batch.target_in[:, t : t + 1], memory, batch.source, cache=cache)
            for t in range(setting.length)
        ]
        gap = (torch.cat(steps, 1) - full).abs().max().item()
    assert leak == 0 and gap < 1e-3, (leak, gap)
    return {"leak": leak, "cache_gap": gap}


def resumed_equals_straight(setting: Setting) -> dict:
    """Under deterministic mode six steps give the bits of three, a stop, and three more."""

    class Same:
        def epoch(self, number: int, start: int = 0):
            return [setting.batch(8) for _ in range(6 - start)]

    weights = []
    torch.use_deterministic_algorithms(True)
    try:
        for stops in ((6,), (3, 6)):
            with tempfile.TemporaryDirectory() as folder:
                for steps in stops:
                    config = TrainingConfig(steps=steps, max_tokens=4096, checkpoint_every=3)
                    model = setting.model()
                    train(model, Same(), config, folder, bar=False)
                assert len(list_checkpoints(folder)) == 2
                weights.append([p.detach().clone() for p in model.parameters()])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    return {"same_bits": True}


class Peer(nn.Module):
    """The same sizes built from torch's own nn.Transformer."""

    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.config = c
        self.table = nn.Embedding(c.vocab_size, c.d_model)
        self.stacks = nn.Transformer(
            c.d_model, c.heads, c.layers, c.layers, c.d_ff, c.dropout, batch_first=True
        )

    def forward(self, source, target):
        hidden = source == self.config.pad_id
        future = nn.Transformer.generate_square_subsequent_mask(
            target.size(1), device=target.device, dtype=torch.bool
        )
        x = self.stacks(
            self.table(source), self.table(target), tgt_mask=future,
            src_key_padding_mask=hidden, memory_key_padding_mask=hidden, tgt_is_causal=True,
        )  # fmt: skip
        return x @ self.table.weight.T


def training_speed(setting: Setting) -> dict:
    """Target tokens a second: fp32, bf16, bf16 compiled, and torch's own stacks in bf16."""
    batch, speeds = setting.batch(), {}
    models = {
        "fp32": (setting.model, "fp32"),
        "bf16": (setting.model, "bf16"),
        "bf16_compiled": (setting.model, "bf16"),
        "peer_bf16": (lambda: Peer(setting.config).to(setting.device), "bf16"),
    }
    for name, (make, precision) in models.items():
        model = make()
        optimizer = make_optimizer(model, TrainingConfig())
        if name.endswith("compiled"):
            model.compile()

        def step(model=model, optimizer=optimizer, precision=precision):
            optimizer.zero_grad()
            accumulate_gradients(model, [batch], 0.1, precision)
            optimizer.step()

        speeds[name] = batch.target_tokens / setting.seconds(step, setting.steps)
    return speeds | {"ours_to_peer": speeds["bf16"] / speeds["peer_bf16"]}


def search_speed(setting: Setting) -> dict:
    """Sentences a second in beam search, untrained weights, fifty tokens beyond the source."""
    model, batch = setting.model().eval(), setting.batch(min(setting.rows, 64))
    seconds = setting.seconds(lambda: beam_search(model, batch.source, n_best=1), 1)
    return {"sentences_per_second": batch.source.size(0) / seconds}


def embedded_corpus(setting: Setting) -> dict:
    """The embedded corpus, from prepare to score."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        assert command(["prepare", "--corpus", "grammar", "--run", folder]) == 0
        assert command(["train", "--run", folder, *setting.limits]) == 0
        for word in ("average", "score"):
            assert command([word, "--run", folder]) == 0
        result = load_results(Path(folder) / "results")["grammar-en-de"]
        seconds = time.perf_counter() - began
    bleu = result["scores"]["averaged"]["bleu"]["value"]
    assert setting.limits or bleu > 90, bleu
    return {"bleu": bleu, "seconds": seconds, "training_seconds": result["seconds"]}


CHECKS = (
    fused_equals_explicit, causal_and_cached, resumed_equals_straight,
    training_speed, search_speed, embedded_corpus,
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rehearse", action="store_true", help="small, on the CPU")
    options = parser.parse_args()
    setting = Setting(options.rehearse)
    figures = {"name": "device", "rehearsal": options.rehearse, **environment(setting.device)}
    for check in CHECKS:
        began = time.perf_counter()
        try:
            figures[check.__name__] = check(setting)
        except Exception:
            figures[check.__name__] = {"failed": traceback.format_exc()}
        seconds = round(time.perf_counter() - began, 1)
        print(check.__name__, seconds, "s", figures[check.__name__], flush=True)
        with contextlib.suppress(OSError):
            write_result(options.out, figures)
    return int(any("failed" in figures[check.__name__] for check in CHECKS))


if __name__ == "__main__":
    raise SystemExit(main())
