"""Data sets by name: the embedded digits, and synthetic ones with a known structure."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.data import (
    DATASETS,
    IGNORE,
    dataset,
    digits,
    gaussian,
    markov,
    next_token_windows,
    waves,
)


def test_the_digits_are_the_uci_test_file() -> None:
    # class counts, pixel sum and first labels as read from the copy of that file which scikit-learn
    # 1.x distributes
    x, y = digits()
    assert x.shape == (1797, 1, 8, 8) and x.dtype == torch.float32 and y.dtype == torch.int64
    assert (x.min(), x.max()) == (0, 1) and torch.equal(x * 16, (x * 16).round())
    assert torch.bincount(y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert int((x * 16).double().sum()) == 561718
    assert y[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_the_digits_can_be_learnt() -> None:
    x, y = digits()
    train, test = x[:1200].flatten(1), x[1200:].flatten(1)
    nearest = torch.cdist(test, train).argmin(1)  # one nearest neighbour
    assert (y[:1200][nearest] == y[1200:]).float().mean() > 0.93


# those that need no files
@pytest.mark.parametrize("name", ["digits", "gaussian", "waves", "markov"])
def test_a_data_set_is_what_its_record_says(name: str) -> None:
    pool = dataset(name).load()
    assert DATASETS[name].name == name and DATASETS[name].classes in (None, pool.classes)
    assert len(pool.x) == len(pool.y) and pool.about
    assert pool.y[pool.y != IGNORE].min() >= 0 and pool.y.max() < pool.classes
    assert torch.equal(dataset(name).load().x, pool.x)
    assert (
        pool.x.dim() == {"images": 4, "signals": 3, "features": 2, "tokens": 2}[DATASETS[name].kind]
    )


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(DataError, match='did you mean "digits"'):
        dataset("digit")


@pytest.mark.parametrize("make", [gaussian, waves, markov])
def test_another_seed_is_other_data(make) -> None:
    assert not torch.equal(make(seed=0).x, make(seed=1).x)


def test_gaussian_classes_lie_around_their_centres() -> None:
    pool = gaussian(rows=2000, classes=4, features=10, spread=0.1)
    for label in range(4):
        assert pool.x[pool.y == label].std(0).mean() == pytest.approx(0.1, rel=0.1)


def test_markov_users_write_like_their_topic() -> None:
    # transition counts of two users of a topic are closer than those of two users of different
    # topics
    pool = markov(users=4, rows=400, vocabulary=8, topics=2)
    counts = np.zeros((4, 8, 8))
    scored = (pool.y != IGNORE).numpy()
    user = np.broadcast_to(pool.users[:, None], scored.shape)[scored]
    np.add.at(counts, (user, pool.x.numpy()[scored], pool.y.numpy()[scored]), 1)
    share = counts / counts.sum((1, 2), keepdims=True)
    one, two = np.flatnonzero(pool.topics == 0)
    other = np.flatnonzero(pool.topics == 1)[0]
    assert np.abs(share[one] - share[two]).sum() < 0.3 * np.abs(share[one] - share[other]).sum()


def test_markov_labels_are_the_next_tokens_and_padding_is_at_the_end() -> None:
    pool = markov()
    scored = pool.y != IGNORE
    both = scored[:, 1:]
    assert torch.equal(pool.x[:, 1:][both], pool.y[:, :-1][both])
    assert (scored[:, :-1] >= scored[:, 1:]).all() and (~scored).any() and scored.sum(1).min() >= 10


def test_a_stream_is_cut_into_windows_of_next_tokens() -> None:
    x, y = next_token_windows([1, 2, 3, 4, 5, 6], steps=3)
    assert x.tolist() == [[1, 2, 3], [4, 5, 0]] and y.tolist() == [[2, 3, 4], [5, 6, IGNORE]]
    assert next_token_windows(range(7), steps=3)[1].tolist() == [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(DataError, match="stream"):
        next_token_windows([1], steps=3)
