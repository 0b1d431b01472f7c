"""Texts of users in the order of time, as a federation for next-word or next-character
prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.errors import DataError
from fedblocks.core.random import generator
from fedblocks.data.federation import Federation
from fedblocks.data.sets.divided import TEST, TRAIN, VALIDATION, DividedPool
from fedblocks.data.sets.words import Text, Vocabulary, sequences
from fedblocks.data.splits import Fractions, part_sizes
from fedblocks.data.summary import IGNORE

Texts = Sequence[Text]  # one user's texts, the oldest first
SCORES = ("all", "without_oov", "without_oov_and_eos")


@dataclass(frozen=True, eq=False)
class Corpus:
    """Users and their texts, divided into parts in the order of time."""

    users: Sequence[str]
    train: Sequence[Texts]  # one entry per user
    validation: Sequence[Texts]
    test: Sequence[Texts]
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = {len(self.users), len(self.train), len(self.validation), len(self.test)}
        if len(sizes) > 1:
            raise DataError(
                f"parts of another number of users than {len(self.users)}",
                "give every part of every user",
            )

    @classmethod
    def in_time_order(
        cls, users: Mapping[str, Texts], split: Fractions, about: dict[str, Any] | None = None
    ) -> Corpus:
        """Each user's oldest texts train, newer ones validate, the newest ones test."""
        if not users:
            raise DataError(
                "there are no users", "ask for fewer texts per user, or give other files"
            )
        texts = list(users.values())
        train, validation = part_sizes(np.array([len(own) for own in texts]), split)
        cuts = list(zip(texts, train.tolist(), (train + validation).tolist()))
        return cls(
            users=list(users),
            train=[own[:a] for own, a, _ in cuts],
            validation=[own[a:b] for own, a, b in cuts],
            test=[own[b:] for own, _, b in cuts],
            about={**(about or {}), "split": list(split), "order": "time"},
        )

    def vocabulary(self, size: int, buckets: int = 1) -> Vocabulary:
        """The most frequent words of the training parts, and of nothing else."""
        return Vocabulary.most_frequent((text for own in self.train for text in own), size, buckets)

    def pool(self, vocabulary: Vocabulary, steps: int = 20, most: int | None = None) -> DividedPool:
        """Sequences with their users and parts; `most` sequences of each text (None: all of it)."""
        parts = ((TRAIN, self.train), (VALIDATION, self.validation), (TEST, self.test))
        held = [
            (part, user, text)
            for part, texts in parts
            for user, own in enumerate(texts)
            for text in own
        ]
        cut = sequences([vocabulary.encode(text) for _, _, text in held], steps, most)
        part, user = (
            np.array([entry[k] for entry in held], dtype=np.int64)[cut.text] for k in (0, 1)
        )
        return DividedPool(
            x=torch.from_numpy(cut.x),
            y=torch.from_numpy(cut.y),
            classes=vocabulary.size,
            users=np.array(self.users)[user],
            about={
                **self.about,
                "steps": steps,
                "sequences_per_text": most,
                "vocabulary": vocabulary.marks,
            },
            part=part,
        )


def set_aside(texts: Texts, share: float) -> tuple[Texts, Texts]:
    """The newest share of the texts apart from the older ones; a single text is cut in two."""
    if len(texts) == 1:
        cut = len(texts[0]) - int(share * len(texts[0]))
        return [texts[0][:cut]], [texts[0][cut:]] if cut < len(texts[0]) else []
    cut = len(texts) - int(share * len(texts))
    return texts[:cut], texts[cut:]


def choose_users(names: Sequence[str], users: int | None, seed: int) -> list[str]:
    """Some users at random, in the order of their names; the choice does not depend on
    the order of the file.
    """
    ordered = sorted(names)
    if users is None or users >= len(ordered):
        return ordered
    chosen = generator(seed, "users").permutation(len(ordered))[:users]
    return [ordered[at] for at in np.sort(chosen)]


def scores_of(marks: Mapping[str, Any]) -> Sequence[str]:
    """How the answers on a federation are counted: three ways where it says its special
    words, else one.
    """
    return SCORES if marks else SCORES[:1]


def scored_view(view: str, score: str) -> str:
    """The name under which a view's score is stored."""
    return view if score == "all" else f"{view}_{score}"


def left_out(labels: Tensor, marks: Mapping[str, Any], score: str) -> Tensor:
    """Where a label does not count: padding, and for the other two scores OOV words,
    and EOS too.
    """
    if score not in SCORES:
        raise DataError(f'there is no score "{score}"', f"choose one of {', '.join(SCORES)}")
    out = labels == IGNORE
    if score != "all":
        out = out | ((labels >= marks["oov"][0]) & (labels < marks["oov"][1]))
    return out | (labels == marks["eos"]) if score == "without_oov_and_eos" else out


def count_words(
    predicted: Tensor, labels: Tensor, marks: Mapping[str, Any]
) -> dict[str, tuple[int, int]]:
    """For each of the three scores: words predicted right, and words that count; logits
    [..., words] or words.
    """
    chosen = predicted.argmax(-1) if predicted.dim() == labels.dim() + 1 else predicted
    right = chosen == labels
    counts: Callable[[str], Tensor] = lambda score: ~left_out(labels, marks, score)
    return {
        score: (int((right & counts(score)).sum()), int(counts(score).sum())) for score in SCORES
    }


def scored_without(federation: Federation, score: str) -> Federation:
    """The same clients, but in validation and test some words are not scored; training
    rows keep all their labels.
    """
    marks = federation.about.get("vocabulary")
    if not isinstance(marks, dict) or "oov" not in marks:
        raise DataError(
            "the federation does not say which words are special", "make it from texts (a Corpus)"
        )
    scored = np.concatenate([federation.validation.index, federation.test.index])
    held = torch.from_numpy(np.setdiff1d(scored, federation.train.index)).to(federation.y.device)
    y = federation.y.clone()
    own = y[held]
    y[held] = torch.where(left_out(own, marks, score), IGNORE, own)
    return replace(federation, y=y, about={**federation.about, "score": score})


def score_variants(federation: Federation) -> dict[str, Federation]:
    """A federation for each of the three scores: over all words, without OOV, without
    OOV and EOS.
    """
    return {score: scored_without(federation, score) for score in SCORES}
