"""Names of clients in groups, faults, traces and samplers."""

from pathlib import Path

import pytest

import fedblocks as fb
from fedblocks.runs.build import prepare
from fedblocks.runs.faults import faults_of

pytestmark = pytest.mark.filterwarnings("ignore:.*training rows")
SMALL = ["data.clients=6", "rounds=2"]
GROUP = 'groups.some={clients = [%s], net = {name = "mlp"}, method = {name = "fedavg"}}'


def method() -> fb.Method:
    return fb.FedAvg(fb.small_net(), lr=0.1)


def test_a_group_is_a_list_of_names_or_numbers(tmp_path: Path) -> None:
    data, both = fb.small_federation(), {"all": method(), "some": method()}
    named = fb.run(both, data, 1, tmp_path / "a", groups={"some": ["client-4", 1]})
    assert named.config.groups["some"].clients == (4, 1)
    with pytest.raises(fb.DataError, match=r'groups\["some"\]: there is no client "client-8"'):
        fb.run(both, data, 1, tmp_path / "b", groups={"some": ["client-8"]})
    with pytest.raises(fb.UserError, match="'client-4' is not a list of clients"):
        fb.run(both, data, 1, tmp_path / "b", groups={"some": "client-4"})
    with pytest.raises(fb.UserError, match='client 0, "client-0", is in no group'):
        fb.run({"some": method()}, data, 1, tmp_path / "b", groups={"some": ["client-4"]})


def test_a_configuration_names_clients_of_groups_and_faults() -> None:
    config = fb.read_config("digits-fedavg", [*SMALL, GROUP % '"client-4", 1'])
    groups = prepare(config).experiment.groups
    assert [number for number, group in enumerate(groups) if group == "some"] == [1, 4]
    prone = prepare(
        fb.read_config("digits-fedavg", [*SMALL, 'faults={drop=1, clients=["client-2"]}'])
    )
    assert faults_of(prone, 0, range(6)) == {2: "drop"}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (GROUP % '"client-9"', r"groups\.some\.clients"),
        ('faults={drop=1, clients=["client-9"]}', r"faults\.clients"),
        ('cohort.sampler={name="trace", rounds=[[0], ["client-9"]]}', r"cohort\.sampler"),
    ],
)
def test_a_wrong_name_in_a_configuration_is_told_with_its_place(change: str, place: str) -> None:
    with pytest.raises(fb.DataError, match=rf'{place}.*there is no client "client-9" among 6'):
        prepare(fb.read_config("digits-fedavg", [*SMALL, change]))


def test_traces_and_samplers_take_names(tmp_path: Path) -> None:
    data = fb.small_federation()
    trace = fb.TraceSampler(rounds=[["client-5", 0], ["client-1"]])  # type: ignore[arg-type]
    for folder, sampler in {
        "trace": trace,
        "own": lambda candidates: ["client-5", 0] if candidates.round == 1 else ["client-1"],
    }.items():
        prepared = prepare(
            fb.runs.python.config_of_objects(
                fb.config.code.ingredients.Ingredients.of(method(), data),
                2,
                {},
                {"sampler": sampler},
            )
        )
        assert [prepared.sampling.cohort(round) for round in (0, 1)] == [[0, 5], [1]], folder
