"""The compact files of real texts and signals, where they are: counts that their sources state."""

from __future__ import annotations

import numpy as np
import pytest

from fedblocks.data.federation import IGNORE
from fedblocks.data.sets.corpora import reddit_2006, shakespeare_roles
from fedblocks.data.sets.cyclic import side_by_side
from fedblocks.data.sets.har import hapt, hapt_recordings, wisdm51_recordings, wisdm51_watch
from fedblocks.data.sets.har_groups import FOUR, FOUR_WATCH, har_groups
from fedblocks.data.sets.signals import windows
from fedblocks.data.sets.text import score_variants
from fedblocks.data.sets.wisdm import wisdm_features

pytestmark = pytest.mark.usefixtures("real_data")


def test_reddit_has_729_users_with_five_comments_or_more() -> None:
    pool = reddit_2006()
    federation = pool.federation()
    assert federation.clients == 729 and federation.classes == 10_004
    assert federation.test.sizes.min() >= 1 and federation.train.sizes.min() >= 1
    scored = {
        s: int((own.y[own.test.index.copy()] != IGNORE).sum())
        for s, own in score_variants(federation).items()
    }
    assert (
        scored["all"] > scored["without_oov"] > scored["without_oov_and_eos"] > 0.9 * scored["all"]
    )


def test_hashed_buckets_of_fedrecon_spread_the_unknown_words() -> None:
    pool = reddit_2006(users=50, words=2000, buckets=500)
    first, stop = pool.about["vocabulary"]["oov"]
    assert (pool.classes, stop - first) == (2503, 500)
    used = np.unique(pool.y.numpy())
    assert ((used >= first) & (used < stop)).sum() > 450


def test_roles_of_shakespeare_speak_in_characters_and_words() -> None:
    words, characters = shakespeare_roles(users=100), shakespeare_roles(unit="character", users=100)
    assert words.federation().clients == characters.federation().clients == 100
    assert words.x.shape[1] == 20 and characters.x.shape[1] == 80 and characters.classes < 100


def test_hapt_has_10929_windows_in_its_labelled_stretches() -> None:
    cut = windows(hapt_recordings(), 128)
    assert np.bincount(cut.label).tolist() == [
        1722,
        1544,
        1407,
        1801,
        1979,
        1958,
        70,
        33,
        107,
        85,
        139,
        84,
    ]
    federation = hapt().federation()
    assert federation.clients == 30 and federation.x.shape[1:] == (6, 128)
    assert federation.validation.sizes.min() > 0 and federation.test.sizes.min() > 0


def test_the_watch_has_51_people_and_304_recordings() -> None:
    assert len(wisdm51_recordings().label) == 304
    federation = wisdm51_watch().federation()
    assert federation.clients == 51 and federation.x.shape[1:] == (3, 52)


def test_wisdm_features_have_5418_rows_of_36_people() -> None:
    pool = wisdm_features()
    assert pool.x.shape == (5418, 43) and pool.federation().clients == 36
    assert np.bincount(pool.y).tolist() == [2081, 1625, 632, 528, 306, 246]


@pytest.mark.parametrize(("per_group", "total"), [(2, 240), (4, 240), (5, 200)])
def test_modfls_groups_of_hapt_have_the_papers_test_totals(per_group: int, total: int) -> None:
    assert har_groups(hapt_recordings(), 128, per_group=per_group).test.sizes.sum() == total


def test_hapt_and_the_watch_stand_side_by_side() -> None:
    own = {
        "hapt": har_groups(hapt_recordings(), 128, per_group=2, activities=FOUR),
        "wisdm51_watch": har_groups(wisdm51_recordings(), 52, per_group=2, activities=FOUR_WATCH),
    }
    both = side_by_side(own)
    assert both.clients == 40 and both.about["shapes"] == {
        "hapt": [6, 128],
        "wisdm51_watch": [3, 52],
    }
