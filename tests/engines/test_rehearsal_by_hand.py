"""A rehearsal asks every function of a method twice, with the same things both times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from fedblocks.engines.first_step import moves_of
from fedblocks.engines.rehearsal import Rehearsal, rehearse
from fedblocks.engines.round import Experiment
from fedblocks.engines.steadiness import Steadiness
from fedblocks.methods.ditto import Ditto
from fedblocks.testing.federations import small_federation, small_net, without_training_rows

CLIENTS = [1, 2, 3]  # with 7, 3 and 8 training rows


@dataclass(frozen=True)
class Watched(Ditto):
    """Ditto, whose functions write down what they are given."""

    seen: ClassVar[list[Any]] = []

    def finish(self, blocks: Any, start: Any, client: Any) -> Any:
        return {
            name: {k: v + torch.zeros_like(v, requires_grad=True) for k, v in block.items()}
            for name, block in super().finish(blocks, start, client).items()
        }

    def conclude(self, server: Any, before: Any, uploads: Any, cohort: Any) -> Any:
        self.seen.append((uploads, cohort))
        return super().conclude(server, before, uploads, cohort)


@pytest.fixture
def rehearsal() -> Rehearsal:
    Watched.seen.clear()
    experiment = Experiment({"all": Watched(net=small_net())}, small_federation(), 0)
    return Rehearsal(experiment, "all", CLIENTS, experiment.start(), True)


def test_a_function_is_asked_again_with_what_it_was_given(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[str, Any]] = []
    again: list[tuple[str, Any]] = []
    call = Rehearsal._call

    def note(self: Rehearsal, local: Any, name: str, *args: Any) -> Any:
        called.append((name, args))
        return call(self, local, name, *args)

    def check(self: Steadiness, hook: Any, local: Any, *args: Any) -> None:
        again.append((hook.__name__, args))

    monkeypatch.setattr(Rehearsal, "_call", note)
    monkeypatch.setattr(Steadiness, "check_hook", check)
    assert rehearsal.play() == []
    first = {name: args for name, args in called if name != "portrait"}
    assert [name for name, _ in again] == ["wants", "prepare", "finish", "writes"] == [*first]
    for name, args in again:
        for one, other in zip(first[name], args, strict=True):
            assert one.keys() == other.keys()
            assert all(one[block] is other[block] for block in one), name


def test_a_server_concludes_on_as_many_clients_all_as_the_one_and_without_their_history(
    rehearsal: Rehearsal,
) -> None:
    rehearsal.play()
    (uploads, cohort), (again, _) = Watched.seen  # it concludes twice, which is compared
    copies = uploads["shared"].copies
    assert cohort.ids.tolist() == CLIENTS and uploads.keys() == again.keys() == {"shared"}
    for value in copies.values():
        assert len(value) == 3 and torch.equal(value[0], value[2]) and not value.requires_grad


def test_a_client_of_middling_size_is_tried_first_then_the_largest_then_the_smallest(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fail(self: Rehearsal, job: Any, member: int) -> list[str]:
        tried.append(int(job.sizes[member]))
        raise ValueError(f"of {job.sizes[member]} rows")

    monkeypatch.setattr(Rehearsal, "_play", fail)
    with pytest.raises(ValueError, match="of 7 rows"):
        rehearsal.play()
    assert tried == [7, 8, 3]


def test_a_first_step_is_concluded_with_the_copy_of_its_only_client(rehearsal: Rehearsal) -> None:
    experiment, state = rehearsal.experiment, rehearsal.state
    moves = moves_of(experiment.training_job("all", [3], state), state)
    ((uploads, cohort),) = Watched.seen
    assert cohort.ids.tolist() == [3] and uploads.keys() == {"shared"}
    for value in uploads["shared"].copies.values():
        assert len(value) == 1 and not value.requires_grad
    assert moves["lengths"].keys() == {"phases", "finish", "writes", "conclude"}
    assert moves["lengths"]["conclude"]["shared"] > 0


@pytest.mark.parametrize(
    ("own", "clients", "played"),
    [(True, [0, 1, 2], [[1, 2]]), (True, [0], []), (False, [0, 1, 2], []), (False, [0], [])],
)
def test_methods_of_others_are_rehearsed_with_clients_that_have_rows(
    own: bool, clients: list[int], played: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = without_training_rows(small_federation(), 0)
    experiment = Experiment.of((Watched if own else Ditto)(small_net()), data, 0)
    seen: list[Any] = []
    monkeypatch.setattr(
        Rehearsal, "play", lambda self: seen.append((self.clients, self.is_padded)) or ["said"]
    )
    assert rehearse(experiment, clients, False) == ["said"] * len(played)
    assert seen == [(ids, False) for ids in played]
