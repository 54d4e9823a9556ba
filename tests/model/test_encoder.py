"""The encoder against transformers' BertModel, a formula for positions and a hand-written pre-norm layer."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import BertConfig, BertModel

from model.attention import MultiHeadAttention
from model.checkpoint import load_checkpoint
from model.config import EncoderConfig
from model.encoder import Encoder, SinusoidalPositions

CONFIG = EncoderConfig(
    vocabulary_size=50,
    hidden_size=12,
    layer_count=2,
    head_count=3,
    feed_forward_size=20,
    max_positions=16,
    norm_eps=1e-5,
)


def bert_inputs(vocabulary_size: int, length: int) -> dict[str, Tensor]:
    mask = torch.ones(3, length, dtype=torch.int64)
    mask[1, length // 2 :] = 0
    mask[2, : length // 3] = 0
    return {
        "input_ids": torch.randint(vocabulary_size, (3, length)),
        "attention_mask": mask,
        "token_type_ids": torch.randint(2, (3, length)),
    }


def assert_equals_bert(encoder: Encoder, bert: BertModel, inputs: dict[str, Tensor]) -> None:
    with torch.no_grad():
        expected = bert(**inputs, output_attentions=True)
        hidden, attentions = encoder(
            inputs["input_ids"],
            inputs["attention_mask"].bool(),
            inputs["token_type_ids"],
            with_attentions=True,
        )
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(hidden[real], expected.last_hidden_state[real], atol=1e-5, rtol=0)
    assert len(attentions) == len(expected.attentions) == encoder.config.layer_count
    for ours, theirs in zip(attentions, expected.attentions, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def load_bert(folder: Path) -> BertModel:
    return BertModel.from_pretrained(folder, add_pooling_layer=False, attn_implementation="eager").eval()


def test_equals_a_random_bert(tiny_bert: Path) -> None:
    encoder = load_checkpoint(tiny_bert).encoder
    assert_equals_bert(encoder, load_bert(tiny_bert), bert_inputs(1000, 33))


def test_equals_the_default_model(default_folder: Path) -> None:
    encoder = load_checkpoint(default_folder).encoder
    assert_equals_bert(encoder, load_bert(default_folder), bert_inputs(30522, 40))


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"])
def test_activations_equal_bert(activation: str, tmp_path: Path, tiny_bert: Path) -> None:
    config = BertConfig.from_pretrained(tiny_bert, hidden_act=activation)
    bert = BertModel(config, add_pooling_layer=False).eval()
    bert.set_attn_implementation("eager")
    bert.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((tiny_bert / "tokenizer.json").read_bytes())
    assert_equals_bert(load_checkpoint(tmp_path).encoder, bert, bert_inputs(1000, 12))


@pytest.mark.parametrize(("length", "hidden_size"), [(1, 4), (7, 9), (600, 32), (5000, 64)])
def test_sinusoids_equal_the_formula(length: int, hidden_size: int) -> None:
    """Vaswani et al. 2017, section 3.5, element by element."""
    expected = np.zeros((length, hidden_size))
    for column in range(hidden_size):
        angles = np.arange(length) / 10_000 ** (2 * (column // 2) / hidden_size)
        expected[:, column] = np.cos(angles) if column % 2 else np.sin(angles)
    np.testing.assert_allclose(SinusoidalPositions(hidden_size)(length).numpy(), expected, atol=2e-7)


def test_sinusoidal_encoder_runs_beyond_max_positions() -> None:
    encoder = Encoder(replace(CONFIG, positions="sinusoidal")).eval()
    ids = torch.randint(50, (1, 40))
    mask = torch.arange(40)[None] < 10
    with torch.no_grad():
        long, short = encoder(ids, mask).token_embeddings, encoder(ids[:, :10]).token_embeddings
    torch.testing.assert_close(long[:, :10], short)


def test_learned_positions_end_at_max_positions() -> None:
    with pytest.raises(IndexError):
        Encoder(CONFIG)(torch.zeros(1, 17, dtype=torch.int64))


@torch.no_grad()
def test_pre_norm_equals_the_equations() -> None:
    """x + Attention(LN(x)), then x + FFN(LN(x)), layer after layer, and a final norm; written out by hand."""
    config = replace(CONFIG, norm="pre", activation="relu", positions="sinusoidal")
    encoder = Encoder(config).eval()
    for parameter in encoder.parameters():
        parameter.normal_(std=0.5)
    state = encoder.state_dict()
    ids, types = torch.randint(50, (2, 6)), torch.randint(2, (2, 6))
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 0, 1, 1, 1, 1]]).bool()

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + config.norm_eps).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def heads(x: Tensor, name: str) -> Tensor:
        return linear(x, name).reshape(2, 6, 3, 4).transpose(1, 2)

    x = state["embeddings.token.weight"][ids] + state["embeddings.segment.weight"][types]
    x = x + SinusoidalPositions(12)(6)
    for n in range(2):
        layer = f"layers.{n}"
        y = norm(x, f"{layer}.attention_norm")
        q, k, v = (heads(y, f"{layer}.attention.{part}") for part in ("query", "key", "value"))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        x = x + linear(attended.transpose(1, 2).reshape(2, 6, 12), f"{layer}.attention.output")
        y = norm(x, f"{layer}.feed_forward_norm")
        x = x + linear(
            linear(y, f"{layer}.feed_forward.expand").clamp(min=0), f"{layer}.feed_forward.contract"
        )
    expected = norm(x, "final_norm")
    torch.testing.assert_close(encoder(ids, mask, types).token_embeddings, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_mask_and_types_default_to_all_real_and_zero() -> None:
    encoder = Encoder(CONFIG).eval()
    ids = torch.randint(50, (2, 5))
    given = encoder(ids, torch.ones(2, 5, dtype=torch.bool), torch.zeros(2, 5, dtype=torch.int64))
    torch.testing.assert_close(encoder(ids).token_embeddings, given.token_embeddings)
    assert given.attentions == ()


@torch.no_grad()
def test_what_a_masked_position_holds_does_not_matter() -> None:
    encoder = Encoder(CONFIG).eval()
    ids = torch.randint(50, (2, 6))
    mask = torch.tensor([[1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1]]).bool()
    expected = encoder(ids, mask).token_embeddings[mask]
    for filler in (0, 7, 49):
        torch.testing.assert_close(encoder(ids.where(mask, filler), mask).token_embeddings[mask], expected)
    encoder.embeddings.token.weight[0] *= 1e6
    torch.testing.assert_close(
        encoder(ids.where(mask, 0), mask).token_embeddings[mask & (ids != 0)], expected[ids[mask] != 0]
    )


@torch.no_grad()
def test_a_fully_masked_row_stays_finite_and_leaves_its_neighbour_alone() -> None:
    encoder = Encoder(CONFIG).eval()
    ids = torch.randint(50, (2, 6))
    mask = torch.tensor([[True] * 6, [False] * 6])
    hidden, attentions = encoder(ids, mask, with_attentions=True)
    assert hidden.isfinite().all()
    assert not any(weights[1].any() for weights in attentions)
    torch.testing.assert_close(hidden[:1], encoder(ids[:1]).token_embeddings)


def test_dropout_only_while_training() -> None:
    encoder = Encoder(replace(CONFIG, dropout=0.5))
    ids = torch.randint(50, (1, 5))
    assert not torch.equal(encoder(ids).token_embeddings, encoder(ids).token_embeddings)
    encoder.eval()
    assert torch.equal(encoder(ids).token_embeddings, encoder(ids).token_embeddings)


def test_it_can_be_trained() -> None:
    encoder = Encoder(replace(CONFIG, norm="pre"))
    encoder(torch.randint(50, (2, 5))).token_embeddings.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


def test_another_attention_can_be_put_in() -> None:
    class Silent(MultiHeadAttention):
        def attend(
            self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
        ) -> tuple[Tensor, None]:
            return torch.zeros_like(query), None

    encoder = Encoder(CONFIG, attention=Silent).eval()
    assert encoder(torch.zeros(1, 3, dtype=torch.int64), with_attentions=True).attentions == ()
