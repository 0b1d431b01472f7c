"""What the suite is made of: beds, settings, entrants, and a manifest that does not move."""

import json
from pathlib import Path
from typing import ClassVar

import pytest

from fedblocks.config.model import Config
from fedblocks.core.errors import UserError
from fedblocks.methods import METHODS
from fedblocks.methods.fedavg import FedAvg
from fedblocks.recipes.suite import manifest
from fedblocks.recipes.suite.beds import BEDS, choose_beds
from fedblocks.recipes.suite.entrants import HELD_OUT, TUNING, Entrant, default_cell, tuned_cell
from fedblocks.recipes.suite.spaces import MOST, SETTINGS, settings_of, space_of
from fedblocks.runs.federations import federation_of

DIGITS = BEDS["digits-groups"]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_tried_with_as_many_settings_the_defaults_first(name: str) -> None:
    cell = tuned_cell(Entrant.named(name), DIGITS, held_out=False)
    points = cell.points()
    assert len(points) == SETTINGS and points[0] == {}
    assert len({json.dumps(point) for point in points}) == SETTINGS
    assert len(space_of(name, METHODS[name], DIGITS.lr)) <= MOST
    for point in points:
        Config.of(cell.table(point))  # refuses wrong names and values


@pytest.mark.parametrize("name", METHODS)
def test_a_default_row_has_the_methods_defaults_but_for_the_budget(name: str) -> None:
    table = default_cell(Entrant.named(name), DIGITS, False).table({})
    rate = 0.005 if name == "pfedme" else 0.3  # pFedMe's is not that of a step, and stays
    budget = {"name": name, "lr": rate, "epochs": 3, "batch_size": 16}
    plain = Config.of({**table, "method": budget}).resolved()["method"]
    mine = Config.of(table).resolved()["method"]
    assert mine == (plain | {"cohorts": "found"} if name == "modfl" else plain)


def test_options_are_chosen_by_a_seed_that_no_report_has() -> None:
    cell = tuned_cell(Entrant("fedavg"), DIGITS, held_out=False)
    while_tuning = cell.table({}, 0, tuning=True)
    assert (while_tuning["seed"], while_tuning["data"]["seed"]) == (TUNING, TUNING)
    report = cell.table({}, 2)
    assert (report["seed"], report["data"]["seed"]) == (2, 2)
    held_out = tuned_cell(Entrant("fedavg"), DIGITS, held_out=True)
    assert held_out.table({}, 2)["data"]["seed"] == HELD_OUT + 2
    assert held_out.table({}, 0, tuning=True)["seed"] == TUNING


class Roomy(FedAvg):
    """Somebody else's method, with too much to tune."""

    space: ClassVar = {
        "epochs": (1, 2),
        "batch_size": (8, 16),
        "optimizer": (1,),
        "drop_last": (1,),
    }


class Modest(FedAvg):
    """Somebody else's method, with one option to tune."""

    space: ClassVar = {"epochs": (1, 2)}


def test_somebody_elses_method_says_its_own_space_of_at_most_four_options() -> None:
    assert set(space_of("modest", Modest, 0.1)) == {"lr", "epochs"}
    assert {"method.epochs"} < set(settings_of("modest", Modest, 0.1)[1])
    with pytest.raises(UserError, match="roomy has 5 options to tune"):
        space_of("roomy", Roomy, 0.1)


def test_another_source_is_another_entrant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "modest", Modest)
    helper = tmp_path / "helper.py"
    helper.write_text("A = 1\n")
    before = Entrant.named("modest", [str(helper)])
    assert before == Entrant.named("modest", [str(helper)]) and len(before.source) == 8
    helper.write_text("A = 2\n")
    assert Entrant.named("modest", [str(helper)]) != before
    assert Entrant.named("fedavg", [str(helper)]) == Entrant("fedavg")


def test_the_manifest_is_frozen() -> None:
    text = Path(manifest.__file__).with_name("manifest.json").read_text()
    stored = json.loads(text)
    assert stored["manifest"] == manifest.manifest_hash(), "a new version, with all results anew?"
    assert set(stored["federations"]) == set(BEDS)
    seeds = {str(first + seed) for first in (0, HELD_OUT) for seed in range(6)}
    assert all(set(own) == seeds for own in stored["federations"].values())


@pytest.mark.parametrize("held_out", [False, True])
def test_the_digits_are_those_of_the_manifest(held_out: bool) -> None:
    table = default_cell(Entrant("fedavg"), DIGITS, held_out).table({}, 1)
    data = federation_of(Config.of(table))
    seed = table["data"]["seed"]
    assert manifest.is_frozen("digits-groups", seed, data.hash()) is True
    assert manifest.is_frozen("digits-groups", seed + 1, data.hash()) is False
    assert manifest.is_frozen("digits-groups", 77, data.hash()) is None


def test_new_clients_are_as_many_as_the_bed_says() -> None:
    for bed in BEDS.values():
        assert round(bed.config("fedavg")["data"]["unseen"] * bed.clients) == bed.new


def test_lite_has_packaged_data_only_and_a_wrong_bed_names_the_nearest() -> None:
    assert [bed.data_set for bed in choose_beds(None, lite=True)] == ["digits"]
    assert [bed.name for bed in choose_beds("reddit, hapt", lite=True)] == ["hapt", "reddit"]
    with pytest.raises(UserError, match='no bed "hatp"') as wrong:
        choose_beds("hatp", lite=False)
    assert "hapt" in wrong.value.fix
    with pytest.raises(UserError, match="names no bed"):
        choose_beds(" , ", lite=False)
