"""Many clients that keep something: packed, shared between states, stored and read back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedblocks.core import private_state as population
from fedblocks.core.private_state import ShardedState, StackedState, merge_private
from fedblocks.core.state import State
from fedblocks.engines.round import run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.runs.storage import checkpoint, shards
from fedblocks.runs.storage.states import client_trees, settle, shared_tree, state_of
from fedblocks.testing import EXAMPLES
from fedblocks.testing.compare import state_leaves


def own(value: float, size: int = 3) -> dict:
    return {"head": {"weight": torch.full((2, size), value), "bias": torch.full((2,), value)}}


def values(found) -> dict[int, float]:
    return {client: float(blocks["head"]["bias"][0]) for client, blocks in found.items()}


def test_a_population_is_a_mapping_in_the_order_of_clients() -> None:
    built = ShardedState().merge({client: own(float(client)) for client in (700, 3, 64, 63)})
    assert list(built) == [3, 63, 64, 700] and len(built) == 4
    assert values(built) == {3: 3, 63: 63, 64: 64, 700: 700}
    assert 65 not in built and built.get(65, {}) == {} and built.get(10**6) is None
    assert built and not ShardedState()


def test_a_round_never_counts_a_whole_population(monkeypatch, packed_at_once) -> None:
    experiment = EXAMPLES["fedper"]().experiment()
    state, _ = run_round(experiment, experiment.start(), [0, 1], Sequential())
    assert isinstance(state.private, ShardedState)
    for name in ("__len__", "__iter__"):
        monkeypatch.setattr(
            ShardedState, name, lambda self: pytest.fail("it depends on how many clients there are")
        )
    assert run_round(experiment, state, [0, 1], Sequential())[1].clients == [0, 1]


def test_a_change_leaves_the_old_population_as_it_was_and_shares_its_other_shards() -> None:
    before = ShardedState().merge({client: own(0.0) for client in range(200)})
    after = before.merge({5: own(1.0), 500: own(2.0)})
    assert values(before)[5] == 0 and 500 not in before
    assert values(after) == {**values(before), 5: 1, 500: 2}
    assert after.shards[1] is before.shards[1] and after.shards[0] is not before.shards[0]


def test_clients_with_other_blocks_live_in_the_same_shard() -> None:
    built = ShardedState().merge({0: own(0.0), 1: own(1.0, size=9), 2: own(2.0)})
    built = built.merge({1: own(5.0), 2: own(6.0, size=9)})  # they have changed places
    assert values(built) == {0: 0, 1: 5, 2: 6}
    assert [built[c]["head"]["weight"].shape[1] for c in built] == [3, 3, 9]


def test_few_clients_stay_as_they_are_and_many_are_packed() -> None:
    few = merge_private({}, {0: own(0.0)})
    assert isinstance(few, dict)
    many = merge_private(few, {client: own(1.0) for client in range(1, population.MANY)})
    assert isinstance(many, ShardedState) and len(many) == population.MANY
    assert isinstance(merge_private(many, {7: own(3.0)}), ShardedState)


def test_what_all_keep_is_one_stack_until_some_take_part_without_the_others() -> None:
    experiment = EXAMPLES["fedper"]().experiment()
    everybody, engine = list(range(experiment.data.clients)), Sequential()
    first, _ = run_round(experiment, experiment.start(), everybody, engine)
    assert isinstance(first.private, StackedState)
    assert list(first.private) == everybody and len(first.private) == len(everybody)
    assert (
        0 in first.private and len(everybody) not in first.private and first.private.get(-1) is None
    )
    as_a_dict = replace(first, private=dict(first.private))
    for cohort in (everybody, [0, 2]):
        ends = [run_round(experiment, state, cohort, engine)[0] for state in (first, as_a_dict)]
        assert isinstance(ends[0].private, StackedState if cohort == everybody else dict)
        leaves = [state_leaves(end) for end in ends]
        assert leaves[0].keys() == leaves[1].keys()
        assert all(torch.equal(value, leaves[1][name]) for name, value in leaves[0].items())


@pytest.fixture
def packed_at_once(monkeypatch):
    for module in (population, shards):
        monkeypatch.setattr(module, "MANY", 1)


@pytest.mark.parametrize("name", ["fedper", "pfedmb"])
def test_rounds_of_packed_clients_end_where_those_of_others_end(name, monkeypatch) -> None:
    def last() -> State:
        experiment = EXAMPLES[name]().experiment()
        state = experiment.start()
        for cohort in ([0, 2], [1, 2], [0, 3]):
            state = settle(run_round(experiment, state, cohort, Sequential())[0])
        return state

    plain = last()
    monkeypatch.setattr(population, "MANY", 1)
    packed = last()
    assert isinstance(packed.private, ShardedState) and isinstance(plain.private, dict)
    ours, theirs = state_leaves(packed), state_leaves(plain)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.usefixtures("packed_at_once")
def test_a_packed_state_comes_back_from_its_checkpoint(tmp_path) -> None:
    private = ShardedState().merge({client: own(float(client)) for client in (*range(100), 1000)})
    state = State(1, {"model": {"w": torch.ones(1, 2)}}, {"model": {}}, private)
    checkpoint.save(tmp_path, 1, shared_tree(state), client_trees(state), None)
    again = state_of(checkpoint.load(tmp_path), "cpu")
    assert isinstance(again.private, ShardedState) and values(again.private) == values(private)


def test_a_packed_checkpoint_of_few_clients_and_an_unpacked_one_of_many_are_read_as_well(
    tmp_path, monkeypatch
) -> None:
    few = {client: own(float(client)) for client in (0, 1, 70)}
    packed = State(1, {}, {}, ShardedState().merge(few))
    checkpoint.save(tmp_path / "packed", 1, shared_tree(packed), client_trees(packed), None)
    assert values(checkpoint.load(tmp_path / "packed").clients) == values(few)
    checkpoint.save(tmp_path / "plain", 1, {}, few, None)
    monkeypatch.setattr(shards, "MANY", 1)
    assert values(checkpoint.load(tmp_path / "plain").clients) == values(few)


@pytest.mark.usefixtures("packed_at_once")
def test_a_checkpoint_writes_the_shards_that_changed_and_links_the_others(tmp_path) -> None:
    state = State(0, {}, {}, ShardedState().merge({client: own(0.0) for client in range(640)}))
    for round in range(1, 5):
        changed = {round: own(float(round))}
        state = replace(state, round=round, private=merge_private(state.private, changed))
        checkpoint.save(tmp_path, round, shared_tree(state), client_trees(state), changed, keep=4)
    files = sorted((tmp_path / "round-000004" / "clients").glob("*.safetensors"))
    # of ten shards the first changed
    assert [file.stat().st_nlink > 1 for file in files] == [False] + [True] * 9
    assert values(state_of(checkpoint.load(tmp_path), "cpu").private)[4] == 4


def test_the_size_of_a_shard_is_part_of_the_checkpoint_format() -> None:
    assert population.CLIENTS_PER_SHARD == 64 and checkpoint.FORMAT[0] == 1
