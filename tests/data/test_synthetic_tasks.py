"""Made-up numbers, labels and tagged words have the structure that their recipes say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedblocks as fb
from fedblocks.data import dataset, diagnoses, tagged_words, truck_ranges
from fedblocks.data.pools import DataPool


def rest_of_fit(pool: DataPool, rows: np.ndarray) -> float:
    """What a linear function with a start of its own leaves of the numbers of some rows."""
    x = np.concatenate([pool.x.numpy()[rows], np.ones((rows.sum(), 1))], 1)
    y = pool.y.numpy()[rows]
    return float(np.abs(y - x @ np.linalg.lstsq(x, y, rcond=None)[0]).max())


def test_trucks_of_one_group_have_the_same_slopes_and_a_start_of_their_own() -> None:
    pool = truck_ranges(trucks=8, rows=30, outputs=2, groups=2, noise=0.0)
    assert pool.x.shape == (240, 6) and pool.y.shape == (240, 2) and pool.classes == 2
    assert pool.users is not None and pool.topics is not None
    assert all(rest_of_fit(pool, pool.users == truck) < 1e-5 for truck in range(8))
    assert rest_of_fit(pool, np.ones(240, bool)) > 0.1
    alike = truck_ranges(trucks=8, rows=30, groups=2, noise=0.0, unlike=0.0)
    assert rest_of_fit(alike, np.ones(240, bool)) < 1e-5


def test_labels_are_there_above_a_threshold_that_grows() -> None:
    pool = diagnoses(hospitals=10, rows=400, labels=4, groups=2, unlike=0.0, rarity=1.5)
    assert pool.y.shape == (4000, 4) and {*pool.y.unique().tolist()} == {0.0, 1.0}
    share = pool.y.mean(0)
    assert float(share[0]) == pytest.approx(0.5, abs=0.05)
    assert share.tolist() == sorted(share.tolist(), reverse=True) and 0 < float(share[-1]) < 0.2


def test_a_tag_follows_from_the_word_the_one_before_and_the_group() -> None:
    pool = tagged_words(writers=8, rows=200, vocabulary=6, tags=3, groups=2)
    assert pool.users is not None and pool.topics is not None
    assert pool.x.shape == (1600, 12) and int(pool.x.max()) == 5 and pool.classes == 3
    padded = pool.y == fb.IGNORE
    assert (pool.x[padded] == 0).all() and (pool.x[~padded] > 0).all() and padded.any()
    assert not padded[:, :6].any()  # half of the steps at least
    group = torch.from_numpy(pool.topics[pool.users])[:, None].expand(-1, 11)
    kind = torch.stack([group, pool.x[:, :-1], pool.x[:, 1:]], -1)[~padded[:, 1:]]
    tags = pool.y[:, 1:][~padded[:, 1:]]
    _, which = torch.unique(kind, dim=0, return_inverse=True)
    one_tag = [tags[which == w].unique().numel() == 1 for w in range(int(which.max()) + 1)]
    assert len(one_tag) == 2 * 5 * 5 and all(one_tag)
    _, words = torch.unique(kind[:, 1:], dim=0, return_inverse=True)
    assert any(tags[words == w].unique().numel() > 1 for w in range(25))  # groups differ


@pytest.mark.parametrize("name", ["truck_ranges", "diagnoses", "tagged_words"])
def test_a_seed_gives_the_same_data_and_another_one_others(name: str) -> None:
    load = dataset(name).load
    one, again, other = load(seed=3), load(seed=3), load(seed=4)
    assert torch.equal(one.x, again.x) and torch.equal(one.y, again.y)
    assert not torch.equal(one.x, other.x)


def test_wrong_options_are_refused_by_name() -> None:
    with pytest.raises(fb.DataError, match="tags"):
        tagged_words(tags=1)
