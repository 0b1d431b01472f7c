"""What messages say, letter by letter: names that are cut, lists that are short, and what to do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core import requirements
from fedblocks.core.admission import misfit
from fedblocks.core.client_names import client_numbers
from fedblocks.core.common_adapters import _check_alike
from fedblocks.core.errors import DataError, NetError, UserError, a_kind, alike, count_of, nearest
from fedblocks.core.fields import Fields
from fedblocks.core.folder_names import LONGEST, check_folder_name
from fedblocks.core.forward_errors import note_of, ranges_of, take_note
from fedblocks.core.frozen import told_apart
from fedblocks.core.hook_results import check_modest
from fedblocks.core.metrics import _describe
from fedblocks.core.modular_net import started_from
from fedblocks.core.option_types import show
from fedblocks.core.rules import Average
from fedblocks.core.samplers import _round_in
from fedblocks.core.special_files import missing_file
from fedblocks.core.uploads import Upload

LONG = "abcdefghij" * 10
NET = fb.Net.of(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)))


def said_by(call: Any, *args: Any) -> tuple[str, str]:
    with pytest.raises(UserError) as refused:
        call(*args)
    return refused.value.message, refused.value.fix


def test_long_names_are_cut() -> None:
    copies = {LONG: torch.zeros(2, 1)}
    upload = Upload("m", torch.arange(2), copies, torch.ones(2, 1), False, Average())
    assert misfit("model", upload, {}) == ("names", f'block "model" has no tensor "{LONG[:80]}"')
    message, _ = said_by(client_numbers, [LONG], ["ann", "bob"])
    assert message == f'there is no client "{LONG[:40]}" among 2 clients'
    message, fix = said_by(client_numbers, [[LONG]], ["ann"])
    assert message == f"['{LONG[:38]}, a list, is neither the number nor the name of a client"
    assert fix == 'give a number from 0 to 0 or a name such as "ann"'
    message, _ = said_by(_round_in, Path("t.csv"), 7, LONG)
    assert message == f'line 7 of the trace t.csv: "{LONG[:40]}" is no round'
    assert _describe(LONG) == f"'{LONG[:59]}"
    assert show(LONG * 9).endswith("...") and show("Käse") == '"Käse"'


def test_a_folder_is_named_by_a_word_that_is_short_enough() -> None:
    assert check_folder_name("a" * LONGEST, "a run") == "a" * LONGEST
    assert check_folder_name("ä" * (LONGEST // 2), "a run")
    for wrong in ("a" * (LONGEST + 1), "ä" * (LONGEST // 2 + 1), "", " a", "a/b", ".a", "a\n", 3):
        with pytest.raises(UserError, match="cannot be the name of a run"):
            check_folder_name(wrong, "a run")
    shown = said_by(check_folder_name, "/" * 58, "x")[0]  # 60 letters with the quotes
    assert shown.startswith(repr("/" * 58) + " cannot")
    cut = said_by(check_folder_name, "/" * 59, "x")[0]
    assert cut.startswith("'" + "/" * 56 + "... cannot")


def test_hashes_are_told_by_twelve_letters() -> None:
    assert told_apart("base", "0123456789abcdef", None, "there") == (
        'the frozen block "base" has the hash 0123456789ab here and none there'
    )
    assert told_apart("g/adapters", "", "scale 2", "on the server") == (
        "the adapters have no scale here and scale 2 on the server"
    )
    one = SimpleNamespace(adapters_are="scale 2.0", base_hash="0123456789abcdef")
    other = SimpleNamespace(adapters_are="scale 2.0", base_hash="fedcba9876543210")
    message, _ = said_by(_check_alike, "lora", ("a", one), ("b", other))
    assert message.startswith('groups "a" and "b" have block "lora" in common')
    assert message.endswith("different bases (hash 0123456789ab and fedcba987654)")
    _check_alike("lora", ("a", one), ("b", one))  # type: ignore[arg-type]


def test_weights_of_another_net_are_told_by_three_names() -> None:
    weights = {**NET.init(0), "z": torch.zeros(1), "a": torch.zeros(1)}
    del weights["2.weight"], weights["0.bias"]
    message, fix = said_by(started_from, NET, weights)
    assert message == "the weights are not those of this net: 0.bias, 2.weight, a"
    assert fix == "give all tensors of one slot"


def test_what_was_meant_is_almost_as_alike_as_what_is_most_alike() -> None:
    assert alike("anything", []) == []
    assert alike(" FedAvg ", ["fedavg", "fedavgm"]) == ["fedavg"]
    assert alike("fe", ["fedavg", "other"]) == []  # two letters begin too many names
    assert alike("fed", ["feda", "fedb", "fedc"]) == ["feda", "fedb", "fedc"]
    many = ["abcdx", "abcdy", "abcdz", "abcdw"]
    assert alike("abcd", many) == many[:3]  # all four begin so: they are only as alike
    assert alike("abcde", ["abxxx", "abcdf", "abcdef"]) == ["abcdef"]
    assert nearest("x", ["", "one"]) == "the only one is one"
    assert nearest("x", []) == "leave it out: there is nothing to choose from"
    assert nearest("tow", ["two", "one"]) == 'did you mean "two"? Or choose one of one, two'


def test_kinds_and_counts_have_their_article_and_number() -> None:
    assert [a_kind(value) for value in ([], torch.zeros(1).numpy(), 1)] == [
        "a list",
        "an ndarray",
        "an int",
    ]
    assert [count_of(n, "slot") for n in (0, 1, 2)] == ["0 slots", "1 slot", "2 slots"]


def test_inputs_out_of_range_are_told_with_their_ends() -> None:
    x = torch.tensor([[-3, 5], [99, 0]])
    assert ranges_of(x) == "whole numbers from -3 to 99"
    assert ranges_of(x.float()) == ranges_of(x[:0]) == ""
    fields = Fields.of({"token": x, "share": torch.zeros(2, 1)})
    packed = fields.pack({"token": x, "share": torch.zeros(2, 1)})
    assert ranges_of(packed, fields) == "whole numbers token from -3 to 99"
    error = IndexError("index out of range in self\nmore")
    take_note(error, "the net N", x)
    note = note_of(error)
    assert note is not None and note.message == (
        "the net N failed: IndexError: index out of range in self; "
        "it was given whole numbers from -3 to 99"
    )
    assert note.fix.startswith("number tokens and categories from 0 on")
    take_note(error, "another", x.float())
    assert note_of(error) is note  # the first is the innermost
    plain = ValueError()
    take_note(plain, "the net N", x)
    note = note_of(plain)
    assert note is not None and note.message == (
        "the net N failed: ValueError; it was given inputs of shape [2, 2] (int64)"
    )
    assert note.fix == "correct its forward pass, or the inputs"
    explained = NetError("said already")
    take_note(explained, "the net N", x)
    assert note_of(explained) is None


def test_weights_from_0_to_the_number_of_labels_are_modest() -> None:
    check_modest("M.writes", {"a": torch.tensor([0.0, 4.0])}, 4.0)
    message, _ = said_by(check_modest, "M.writes", {"a": torch.tensor([-0.5, 9.0])}, 4.0)
    assert message.startswith('M.writes asks for a weight of -0.5 for "a", and a client with 4 ')
    message, _ = said_by(check_modest, "M.writes", {"a": torch.tensor([0.5, 4.5])}, 4.0)
    assert 'a weight of 4.5 for "a"' in message


def test_a_path_that_is_not_whole_is_told_with_where_it_is_looked_for(tmp_path: Path) -> None:
    assert isinstance(missing_file("a.csv"), DataError)
    assert missing_file("a.csv").message == "a.csv does not exist"
    assert f"from the current folder, {Path.cwd()}" in missing_file("a.csv").fix
    assert missing_file(tmp_path / "a.csv").fix == "check the path"


def test_what_a_live_page_needs_is_told_with_the_way_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for absent, extra in (
        ("starlette", "dashboard"),
        ("uvicorn", "dashboard"),
        ("plotly", "report"),
    ):
        monkeypatch.setattr(
            requirements, "find_spec", lambda name, gone=absent: name != gone or None
        )
        message, fix = said_by(requirements.require_for_watching)
        assert message == f"watching in a browser needs the package {absent}"
        assert fix == f'pip install "fedblocks[{extra}]", or use --terminal'
    monkeypatch.setattr(requirements, "find_spec", lambda name: name)
    requirements.require_for_watching()
