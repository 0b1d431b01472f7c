"""Texts of users are divided in the order of time, and scored in three ways."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.data.federation import IGNORE, Federation
from fedblocks.data.sets.text import (
    SCORES,
    Corpus,
    choose_users,
    count_words,
    score_variants,
    scored_without,
    set_aside,
)
from fedblocks.data.synthetic import markov
from fedblocks.engines.round import Experiment, evaluate
from fedblocks.engines.sequential import Sequential
from fedblocks.methods.fedavg import FedAvg
from fedblocks.nets import lstm


def corpus() -> Corpus:
    """Two users with ten texts each; text t of a user has the words `t` and `common`."""
    users = {
        name: [[f"{name}{t}", "common", "common"] for t in range(10)] for name in ("ann", "bob")
    }
    return Corpus.in_time_order(users, (0.6, 0.2, 0.2))


def test_the_oldest_texts_train_and_the_newest_test() -> None:
    own = corpus()
    assert [text[0] for text in own.train[0]] == [f"ann{t}" for t in range(6)]
    assert [text[0] for text in own.validation[1]] == ["bob6", "bob7"]
    assert [text[0] for text in own.test[1]] == ["bob8", "bob9"]


def test_the_vocabulary_knows_nothing_of_validation_and_test() -> None:
    words = set(corpus().vocabulary(100).words)
    assert words == {"common", *(f"{name}{t}" for name in ("ann", "bob") for t in range(6))}


def test_a_client_holds_the_sequences_of_its_user_and_part() -> None:
    own = corpus()
    vocabulary = own.vocabulary(100)
    federation = own.pool(vocabulary, steps=5).federation()
    assert tuple(federation.names) == ("ann", "bob")
    assert federation.train.sizes.tolist() == [6, 6] and federation.test.sizes.tolist() == [2, 2]
    first_words = federation.y[federation.train[1], 0].tolist()
    assert first_words == [vocabulary.number(f"bob{t}") for t in range(6)]
    # ann8 and ann9 were never trained on
    assert (federation.y[federation.test[0], 0] == vocabulary.oov.start).all()


def test_three_counts_leave_out_oov_and_eos() -> None:
    marks = {"oov": [8, 10], "eos": 7}
    labels = torch.tensor([[1, 8, 9, 7, IGNORE], [2, 3, 7, IGNORE, IGNORE]])
    words = torch.tensor([[1, 8, 1, 7, 0], [2, 1, 1, 0, 0]])  # right: 1, 8, 7 and 2
    expected = {"all": (4, 7), "without_oov": (3, 5), "without_oov_and_eos": (2, 3)}
    assert count_words(words, labels, marks) == expected
    # logits
    assert count_words(torch.nn.functional.one_hot(words, 10).float(), labels, marks) == expected


def test_an_engine_counts_the_three_scores_on_the_three_variants() -> None:
    federation = corpus().pool(corpus().vocabulary(100), steps=5).federation()
    method = FedAvg(lstm((5,), federation.classes, units=4, embedding=3), lr=0.1)
    experiment = Experiment.of(method, federation, 0)
    state = experiment.start()
    rows = federation.test[0]
    model = {name: value[0] for name, value in state.server["model"].items()}
    expected = count_words(
        method.net(model, federation.x[rows]), federation.y[rows], federation.about["vocabulary"]
    )
    for score, variant in score_variants(federation).items():
        actual = evaluate(replace(experiment, data=variant), state, [0], Sequential())["personal"][
            0
        ]
        assert tuple(actual[:2]) == expected[score]
    assert expected["all"][1] > expected["without_oov"][1] > expected["without_oov_and_eos"][1]


def test_training_rows_keep_all_their_labels() -> None:
    federation = corpus().pool(corpus().vocabulary(3), steps=5).federation()
    for variant in score_variants(federation).values():
        assert torch.equal(
            variant.y[federation.train.index.copy()], federation.y[federation.train.index.copy()]
        )


def test_a_variant_says_its_score_and_leaves_the_federation_alone() -> None:
    federation = corpus().pool(corpus().vocabulary(3), steps=5).federation()
    before = federation.y.clone()
    for score, variant in score_variants(federation).items():
        assert variant.about == {**federation.about, "score": score}
    assert torch.equal(federation.y, before) and "score" not in federation.about


def test_a_score_needs_a_name_and_a_vocabulary() -> None:
    federation = corpus().pool(corpus().vocabulary(3), steps=5).federation()
    with pytest.raises(DataError, match='no score "bleu"'):
        scored_without(federation, "bleu")
    with pytest.raises(DataError, match="which words are special"):
        pool = markov(users=2)
        scored_without(
            Federation.from_users(pool.x, pool.y, pool.users, classes=pool.classes), SCORES[1]
        )


def test_the_choice_of_users_does_not_depend_on_the_order_of_the_file() -> None:
    names = [f"u{n}" for n in range(50)]
    chosen = choose_users(names, 7, seed=3)
    assert len(set(chosen)) == 7
    assert chosen == choose_users(names[::-1], 7, seed=3) != choose_users(names, 7, seed=4)
    assert choose_users(names, None, 0) == choose_users(names, 99, 0) == sorted(names)


def test_the_newest_texts_are_set_aside_and_a_single_text_is_cut() -> None:
    assert set_aside([["a"], ["b"], ["c"], ["d"]], 0.25) == ([["a"], ["b"], ["c"]], [["d"]])
    assert set_aside([list("abcdefghij")], 0.2) == ([list("abcdefgh")], [list("ij")])
    assert set_aside([["a"]], 0.5) == ([["a"]], [])


def test_parts_of_other_users_are_refused() -> None:
    with pytest.raises(DataError, match="another number of users"):
        Corpus(["ann"], [[["a"]]], [], [[["b"]]])
    with pytest.raises(DataError, match="no users"):
        Corpus.in_time_order({}, (0.7, 0.1, 0.2))


def test_a_part_is_never_shared_between_rows_of_two_users() -> None:
    pool = corpus().pool(corpus().vocabulary(5), steps=2)  # two sequences per text
    assert pool.users is not None and len(pool.x) == 40
    federation = pool.federation()
    for client, name in enumerate(federation.names):
        held = np.concatenate([rows[client] for rows in federation.parts.values()])
        assert set(pool.users[held]) == {name} and len(held) == len(set(held.tolist())) == 20
