"""Small models and texts in the form of Hugging Face transformers, made here: no hub is asked."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from pathlib import Path

import numpy as np
import pytest
import torch

import fedblocks as fb

WORDS, STEPS, CLASSES, WRITERS = 30, 8, 3, 5


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)


def bert(attention: str = "sdpa", dropout: float = 0.0) -> torch.nn.Module:
    """A classifier of two layers, as `transformers` makes it from a configuration."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=STEPS,
        num_labels=CLASSES,
        initializer_range=0.2,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation=attention,
    )
    return BertForSequenceClassification(config)


def texts(seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Tokens with their mask, of unlike lengths; a label that depends on them; who wrote each."""
    rng = np.random.default_rng(seed)
    writer = np.repeat(np.arange(WRITERS), [9, 5, 12, 7, 10])
    length = rng.integers(2, STEPS + 1, len(writer))
    mask = (np.arange(STEPS) < length[:, None]).astype("int64")
    tokens = rng.integers(1, WORDS, (len(writer), STEPS)) * mask
    return {"input_ids": tokens, "attention_mask": mask}, tokens.sum(1) % CLASSES, writer


def written(seed: int = 0) -> fb.Federation:
    inputs, y, writer = texts(seed)
    return fb.Federation.from_users(inputs, y, writer, split=(0.6, 0.2, 0.2))
