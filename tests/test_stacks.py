"""Sub-layers, layers and stacks (chapters/3-1-stacks)."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from transformer.attention import MultiHeadAttention
from transformer.feed_forward import FeedForward
from transformer.model import Transformer, TransformerConfig
from transformer.stacks import Decoder, DecoderLayer, Encoder, EncoderLayer, SubLayer, final_norm

D, D_FF, HEADS = 16, 32, 4


def make_encoder(layers=2, **sub_layer):
    torch.manual_seed(0)
    parts = [(MultiHeadAttention(D, HEADS), FeedForward(D, D_FF)) for _ in range(layers)]
    return Encoder([EncoderLayer(*part, D, **sub_layer) for part in parts])


def make_decoder(layers=2, **sub_layer):
    torch.manual_seed(0)

    def layer():
        attentions = MultiHeadAttention(D, HEADS), MultiHeadAttention(D, HEADS)
        return DecoderLayer(*attentions, FeedForward(D, D_FF), D, **sub_layer)

    return Decoder([layer() for _ in range(layers)])


def inputs(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def draw_norms(stack):
    """Gains and biases that are not one and zero, so that a missing norm is seen."""
    for module in stack.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, mean=1.0, std=0.3)
            nn.init.normal_(module.bias, std=0.3)
    return stack


# The sub-layer


def test_post_norm_normalises_the_sum():
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    out = SubLayer(4, dropout=0.0)(x, lambda y: 2 * y)
    # 3x = (3, 6, 9, 12): mean 7.5, variance 11.25
    expected = [[-1.341641, -0.447214, 0.447214, 1.341641]]
    torch.testing.assert_close(out, torch.tensor(expected), atol=1e-6, rtol=0)


def test_pre_norm_leaves_the_skip_path_alone():
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    out = SubLayer(4, dropout=0.0, norm="pre")(x, lambda y: 2 * y)
    # x hat = (-1.341641, -0.447214, 0.447214, 1.341641)
    expected = [[1 - 2.683281, 2 - 0.894427, 3 + 0.894427, 4 + 2.683281]]
    torch.testing.assert_close(out, torch.tensor(expected), atol=1e-5, rtol=0)


def test_post_norm_is_the_default_with_the_epsilon_of_tensor2tensor():
    sub_layer = SubLayer(D)
    assert sub_layer.norm == "post"
    assert sub_layer.layer_norm.eps == 1e-6
    assert sub_layer.dropout.p == 0.1


def test_layer_norm_uses_the_biased_variance_and_epsilon_inside_the_root():
    x = 0.002 * torch.tensor([[1.0, -1.0, 1.0, -1.0]])  # variance 4e-6
    out = SubLayer(4, dropout=0.0)(x, torch.zeros_like)
    expected = 0.002 / math.sqrt(4e-6 + 1e-6)
    torch.testing.assert_close(out[0, 0].item(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_zero_is_exactly_deterministic_in_training(norm):
    sub_layer, x = SubLayer(D, dropout=0.0, norm=norm), inputs(2, 5, D)
    trained, evaluated = sub_layer.train()(x, torch.sin), sub_layer.eval()(x, torch.sin)
    assert torch.equal(trained, evaluated)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_is_off_in_evaluation(norm):
    sub_layer, x = SubLayer(D, dropout=0.5, norm=norm).eval(), inputs(2, 5, D)
    assert torch.equal(sub_layer(x, torch.sin), sub_layer(x, torch.sin))


def test_dropout_falls_on_the_function_and_not_on_the_skip_path():
    torch.manual_seed(0)
    x = torch.full((100, 200), 5.0)
    out = SubLayer(200, dropout=0.25, norm="pre")(x, torch.ones_like)
    kept = out > 5.5
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 5 + 1 / 0.75))
    assert torch.equal(out[~kept], torch.full_like(out[~kept], 5.0))
    assert 0.24 < 1 - kept.float().mean() < 0.26


def test_dropout_falls_before_the_norm_of_a_post_norm_sub_layer():
    torch.manual_seed(0)
    out = SubLayer(200, dropout=0.25)(torch.zeros(100, 200), torch.ones_like)
    torch.testing.assert_close(out.mean(-1), torch.zeros(100), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.var(-1, correction=0), torch.ones(100), atol=1e-4, rtol=0)


def test_an_unknown_norm_is_named():
    with pytest.raises(ValueError, match="'middle'"):
        SubLayer(D, norm="middle")


def test_an_impossible_dropout_is_refused():
    with pytest.raises(ValueError, match="1.5"):
        SubLayer(D, dropout=1.5)


# Layers and stacks


def torch_layer(ours, kind):
    """torch's own layer with the weights of ours."""
    pre = ours.sub_layers[0].norm == "pre"
    shape = {"dropout": 0.0, "layer_norm_eps": 1e-6, "batch_first": True, "norm_first": pre}
    theirs = kind(D, HEADS, D_FF, **shape)
    pairs = [(theirs.self_attn, ours.self_attention)]
    if kind is nn.TransformerDecoderLayer:
        pairs.append((theirs.multihead_attn, ours.cross_attention))
    with torch.no_grad():
        for attention, own in pairs:
            weights = [own.query.weight, own.key.weight, own.value.weight]
            biases = [own.query.bias, own.key.bias, own.value.bias]
            attention.in_proj_weight.copy_(torch.cat(weights))
            attention.in_proj_bias.copy_(torch.cat(biases))
            attention.out_proj.load_state_dict(own.output.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
    for i, sub_layer in enumerate(ours.sub_layers, 1):
        getattr(theirs, f"norm{i}").load_state_dict(sub_layer.layer_norm.state_dict())
    return theirs


def assert_same_value_and_gradient(ours, theirs, *arguments):
    results = []
    for function in (ours, theirs):
        leaves = [argument.clone().requires_grad_() for argument in arguments]
        value = function(*leaves)
        gradients = torch.autograd.grad(value, leaves, inputs(*value.shape, seed=9))
        results.append((value, *gradients))
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_encoder_layer_equals_torch(norm):
    ours = draw_norms(make_encoder(1, dropout=0.0, norm=norm)).layers[0]
    theirs = torch_layer(ours, nn.TransformerEncoderLayer)
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    assert_same_value_and_gradient(
        lambda x: ours(x, mask), lambda x: theirs(x, src_mask=~mask), inputs(2, 7, D)
    )


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_decoder_layer_equals_torch(norm):
    ours = draw_norms(make_decoder(1, dropout=0.0, norm=norm)).layers[0]
    theirs = torch_layer(ours, nn.TransformerDecoderLayer)
    own, cross = torch.ones(5, 5).tril().bool(), torch.ones(5, 7).tril().bool()
    assert_same_value_and_gradient(
        lambda x, memory: ours(x, memory, own, cross),
        lambda x, memory: theirs(x, memory, tgt_mask=~own, memory_mask=~cross),
        inputs(2, 5, D),
        inputs(2, 7, D, seed=2),
    )


def test_post_norm_stacks_have_no_final_norm():
    for stack in (make_encoder(), make_decoder()):
        assert not list(stack.final_norm.parameters())
    # 2 layers of 2 and of 3 sub-layers, and not one norm more
    norms = [sum(isinstance(m, nn.LayerNorm) for m in stack.modules())
             for stack in (make_encoder(), make_decoder())]
    assert norms == [4, 6]


def test_the_last_thing_in_a_post_norm_stack_is_its_last_sub_layer_norm():
    encoder = draw_norms(make_encoder(2, dropout=0.0))
    seen = []
    last = encoder.layers[-1].sub_layers[-1].layer_norm
    last.register_forward_hook(lambda module, arguments, output: seen.append(output))
    assert torch.equal(encoder(inputs(2, 5, D)), seen[0])


@pytest.mark.parametrize("make", [make_encoder, make_decoder])
def test_pre_norm_stacks_end_in_a_norm_of_their_own(make):
    stack = draw_norms(make(2, dropout=0.0, norm="pre"))
    x, memory = inputs(2, 5, D), inputs(2, 7, D, seed=2)
    arguments = (x,) if make is make_encoder else (x, memory)
    seen = x
    for layer in stack.layers:
        seen = layer(seen, *arguments[1:])
    norm = stack.final_norm
    expected = F.layer_norm(seen, (D,), norm.weight, norm.bias, 1e-6)
    torch.testing.assert_close(stack(*arguments), expected)
    assert norm.eps == 1e-6


def test_the_decoder_layer_runs_self_cross_feed_forward_in_this_order():
    decoder, order = make_decoder(1), []
    layer = decoder.layers[0]
    for name in ("feed_forward", "cross_attention", "self_attention"):
        getattr(layer, name).register_forward_hook(lambda *call, name=name: order.append(name))
    decoder(inputs(2, 5, D), inputs(2, 7, D))
    assert order == ["self_attention", "cross_attention", "feed_forward"]


def test_every_decoder_layer_reads_the_same_memory():
    decoder, seen = make_decoder(3), []
    for layer in decoder.layers:
        layer.cross_attention.register_forward_pre_hook(lambda m, args: seen.append(args[1]))
    memory = inputs(2, 7, D)
    decoder(inputs(2, 5, D), memory)
    assert [each is memory for each in seen] == [True] * 3


def test_masks_reach_the_attention_they_are_meant_for():
    decoder = make_decoder(2, dropout=0.0)
    x, memory = inputs(1, 4, D), inputs(1, 6, D, seed=2)
    own, cross = torch.ones(4, 4).tril().bool(), torch.ones(1, 6).bool()
    cross[:, 4:] = False
    out = decoder(x, memory, own, cross)
    memory[:, 4:] += 1
    assert torch.equal(decoder(x, memory, own, cross), out)
    x[:, 2:] += inputs(1, 2, D, seed=3)
    torch.testing.assert_close(decoder(x, memory, own, cross)[:, :2], out[:, :2])
    assert (decoder(x, memory, own, cross)[:, 2:] - out[:, 2:]).abs().max() > 0.01


def test_each_layer_gets_its_own_caches():
    decoder, seen = make_decoder(2), []
    for layer in decoder.layers:
        for attention in (layer.self_attention, layer.cross_attention):
            attention.forward = lambda q, m, mask=None, cache=None: (seen.append(cache), (q,))[1]
    decoder(inputs(1, 1, D), inputs(1, 3, D), caches=[("a", "b"), ("c", "d")])
    assert seen == ["a", "b", "c", "d"]


def test_a_sentence_alone_gives_what_it_gives_in_a_batch():
    encoder = make_encoder(2, dropout=0.0)
    batch = inputs(3, 7, D)
    mask = torch.ones(3, 1, 1, 7, dtype=torch.bool)
    mask[0, ..., 4:] = False
    alone = encoder(batch[:1, :4])
    torch.testing.assert_close(encoder(batch, mask)[:1, :4], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("stack", [Encoder, Decoder])
def test_an_empty_stack_is_refused(stack):
    with pytest.raises(ValueError, match="at least one layer"):
        stack([])


def test_final_norm_has_the_width_of_the_stack():
    norm = final_norm(make_encoder(1, norm="pre", eps=1e-3).layers)
    assert norm.normalized_shape == (D,) and norm.eps == 1e-3


# What the chapter measures


def gradient_ratio(norm, layers=18):
    """Gradient of the feed-forward network's second matrix in the top decoder layer / bottom."""
    config = TransformerConfig(
        vocab_size=100, layers=layers, d_model=64, d_ff=256, heads=4, dropout=0.0, norm=norm
    )
    model = Transformer(config, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(4)
    source, target = torch.randint(3, 100, (2, 16, 12), generator=generator)
    logits = model(source, target[:, :-1])
    F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten()).backward()
    norms = [layer.feed_forward.outer.weight.grad.norm() for layer in model.decoder.layers]
    return (norms[-1] / norms[0]).item()


def test_the_gradient_fades_in_a_deep_post_norm_decoder_and_not_in_a_pre_norm_one():
    assert gradient_ratio("post") > 20
    assert 1 / 3 < gradient_ratio("pre") < 3
