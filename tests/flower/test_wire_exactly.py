"""What travels, byte by byte and name by name, at the very limits of what is taken."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedblocks.flower.wire import messages, plans, records, run_spec
from fedblocks.flower.wire.downloads import payload_of, union
from fedblocks.flower.wire.messages import Malformed, Wire, as_array, tensors_of
from fedblocks.flower.wire.readable import readable
from fedblocks.flower.wire.records import from_content, hello_answer, spec_of, to_content

from .stored_jobs import SPEC


def test_arrays_and_tensors_are_copies_without_gradients() -> None:
    parameter = torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert as_array(parameter).tolist() == [[1, 2], [3, 4]]
    assert as_array(parameter.T).tolist() == [[1, 3], [2, 4]]
    halves = as_array(torch.tensor([1.0], dtype=torch.bfloat16))
    assert halves.dtype == np.int16 and halves.tolist() == [0x3F80]  # of 1.0
    array = np.zeros(2, dtype=np.float32)
    spec: dict[str, Any] = {"w": (torch.float32, (2,)), "h": (torch.bfloat16, (1,))}
    came = tensors_of({"h": halves, "w": array}, spec)
    array[0] = 9
    assert [*came] == ["w", "h"] and came["w"].tolist() == [0, 0] and came["h"].item() == 1.0


@pytest.mark.parametrize(
    ("arrays", "reason", "said"),
    [
        ({}, "names", '"a" is missing (6 missing, 0 too many)'),
        ("zqmypx", "names", f'"{"m" * 80}" is not part of the plan (0 missing, 6 too many)'),
        ({"a": np.zeros(2)}, "dtype", '"a" is float64, not float32'),
        ({"a": np.zeros((1, 2), "f4")}, "shape", '"a" has shape [1, 2], not [2]'),
    ],
)
def test_arrays_that_are_not_those_of_the_plan_are_named_in_order(
    arrays: Any, reason: str, said: str
) -> None:
    names = "bcadfe" if arrays == {} else "a" if isinstance(arrays, dict) else ""
    spec: Any = dict.fromkeys(names, (torch.float32, (2,)))
    if isinstance(arrays, str):
        arrays = {letter * 81: np.zeros(1) for letter in arrays}
    with pytest.raises(Malformed) as refused:
        tensors_of(arrays, spec)
    assert (refused.value.reason, refused.value.detail) == (reason, said)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_plan_is_hashed_in_no_order_and_with_all_that_matters(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "plan", lambda method: SimpleNamespace(text=lambda: method.words))

    class Method:
        def __init__(self, **changes: Any) -> None:
            self.own = {"lr": 0.1, "name": "a", "of": [1, (2,)], "net": object(), **changes}
            self.words = "plan"
            constant = torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
            self.net = SimpleNamespace(constants={"c": constant})

        def options(self) -> dict[str, Any]:
            return self.own

    method: Any = Method()
    specs: Any = {"b": {"w": (torch.float32, (2,))}, "a": {}}
    own = plans.plan_hash(method, specs, seed)
    turned = {name: specs[name] for name in ("a", "b")}
    again: Any = Method()
    again.own = dict(reversed(again.own.items()))
    assert plans.plan_hash(again, turned, seed) == own and len(own) == 64  # in hex
    other: list[Any] = [Method(lr=0.2), Method(of=[1, (3,)]), Method(), Method()]
    other[2].words = "another"
    other[3].net.constants["c"].data[0, 1] = 5.0
    hashes = {plans.plan_hash(one, specs, seed) for one in other}
    hashes.add(plans.plan_hash(method, {**specs, "a": {"v": (torch.int64, ())}}, seed))
    assert len(hashes | {own, plans.plan_hash(method, specs, seed + 1)}) == 7
    assert plans._plain((1, [None, "a"])) and not plans._plain((1, [object()]))


def test_slots_are_asked_for_once_and_in_order() -> None:
    slots = union({"z": (8, 1), "c": ()}, {"a": (2,), "z": (1, 9, 0), "m": (3,)}, {"k": (1,)})
    assert list(slots.items()) == [
        ("a", (2,)), ("c", ()), ("k", (1,)), ("m", (3,)), ("z", (0, 1, 8, 9))
    ]  # fmt: skip


def test_the_bytes_of_a_block_are_its_arrays_and_its_weights() -> None:
    arrays = {"blocks/a/w": np.zeros(3), "blocks/a/v": np.zeros(1), "blocks/ab/w": np.zeros(9),
              "weights/a": np.zeros(2), "weights/ab": np.zeros(5)}  # fmt: skip
    # (3 + 1 + 2) x 8 bytes
    assert payload_of(Wire("", arrays), "a") == 48
    assert Wire("", arrays).payload() == 160
    assert messages.array_name("blocks", "a/b", "c~d") == "blocks/a~1b/c~0d"


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_headers_specifications_and_greetings_have_a_longest(
    more: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = messages.ApologyHeader(
        run="r", round=0, client=0, nonce="n", plan="p", reason="x", detail=""
    )
    text = header.model_dump_json()
    monkeypatch.setattr(messages, "HEADER_LIMIT", len(text) - more)
    monkeypatch.setattr(records, "HEADER_LIMIT", 5 - more)
    monkeypatch.setattr(records, "HELLO_LIMIT", 7 - more)
    spec = RecordDict({"run": ConfigRecord({"json": "12345"})})
    hello = RecordDict({"hello": ConfigRecord({"json": '{"a":1}'})})
    reads = [lambda: messages.header_of(Wire(text, {})), lambda: spec_of(spec),
             lambda: hello_answer(hello)]  # fmt: skip
    for read, wanted in zip(reads, [header, "12345", {"a": 1}], strict=True):
        if fits:
            assert read() == wanted  # type: ignore[operator]
        else:
            with pytest.raises(Malformed, match=r"^envelope"):
                read()  # type: ignore[operator]


def test_a_wrong_header_is_named_by_its_place() -> None:
    for text, said in (('{"kind": "more"}', "more.run: Field required"), ("[]", "header: ")):
        with pytest.raises(Malformed) as refused:
            messages.header_of(Wire(text, {}))
        assert refused.value.detail.startswith(said)


@pytest.mark.parametrize(("less", "reason"), [(0, None), (1, "too-large")])
def test_answers_are_taken_up_to_their_bytes_and_each_is_refused_by_itself(
    less: int, reason: str | None
) -> None:
    content = to_content({3: Wire("a", {"w": np.arange(4.0)}), 7: Wire("b", {})})
    size = len(content["3"]["w"].data)  # type: ignore[union-attr]
    came = from_content(content, {3: size - less, 7: 0})
    first, second = came[3], came[7]
    assert isinstance(second, Wire) and second.header == "b" and second.arrays == {}
    if reason is None:
        assert isinstance(first, Wire) and first.arrays["w"].tolist() == [0, 1, 2, 3]
    else:
        said = f"{size} bytes, and the plan has at most {size - 1}"
        assert isinstance(first, Malformed) and (first.reason, first.detail) == (reason, said)


@pytest.mark.parametrize(
    ("name", "limits", "fits"),
    [("3", None, True), ("3", {3: 9}, True), ("3", {4: 9}, False), ("9" * 20, None, True),
     ("9" * 21, None, False), ("-1", None, False), ("\u0663", None, False), ("x", None, False)],
)  # fmt: skip
def test_an_answer_is_under_the_number_of_a_client(name: str, limits: Any, fits: bool) -> None:
    content = RecordDict({"headers": ConfigRecord({name: "h"}), name: ArrayRecord({})})
    if fits:
        assert [*from_content(content, limits)] == [int(name)]
    else:
        with pytest.raises(Malformed) as refused:
            from_content(content, limits)
        assert refused.value.detail == f'there is no client "{name[:20]}" in what was asked'


@pytest.mark.parametrize("by_column", [False, True])
def test_an_array_is_read_row_by_row_or_column_by_column(by_column: bool) -> None:
    array = np.asarray([[1.0, 2.0], [3.0, 4.0]], order="F" if by_column else "C")
    stream = io.BytesIO()
    np.save(stream, array)
    packed = Array("float64", (2, 2), "numpy.ndarray", stream.getvalue())
    assert records._unpack("w", packed).tolist() == array.tolist()
    for data, kind in ((stream.getvalue(), "other"), (b"x" * 99, "numpy.ndarray")):
        with pytest.raises(Malformed, match=r"^dtype"):
            records._unpack("w", Array("float64", (2, 2), kind, data))


@pytest.mark.parametrize(
    ("table", "excess"),
    [
        ({"width": 2**31 - 1}, ""), ({"width": 2**31}, "width is larger than 2147483647"),
        ({"width": -(2**31)}, "width is larger than 2147483647"),
        ({"epochs": 10_000}, ""), ({"epochs": 10_001}, "epochs is larger than 10000"),
        ({"local_steps": [1, [10_001]]}, "local_steps is larger than 10000"),
        ({"steps_local": 10_001}, ""), ({"a": {"layers": 10_001}}, "layers is larger than 10000"),
        ({"w" * 41: 2.0**32}, f"{'w' * 40} is larger than 2147483647"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["net", "method", "groups", "task"])
def test_what_a_client_does_for_a_server_has_bounds(
    table: dict[str, Any], excess: str, where: str
) -> None:
    changed = {"g": table} if where == "groups" else {**SPEC.get(where, {}), **table}
    assert run_spec.RunSpec(**{**SPEC, where: changed}).excess() == excess


def test_a_specification_has_a_longest_and_groups_are_by_number_or_tag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = {"n": {"tag": "north", "value": 1}, "l": {"clients": [2, 3], "net": 1, "method": 2}}
    spec = run_spec.RunSpec(**{**SPEC, "groups": groups})
    assert [spec.group(2, {}), spec.group(4, {}), spec.group(2, {"north": 1})] == ["l", "all", "n"]
    assert spec.group(4, {"north": 0}) == "all" and spec.tables("l") == groups["l"]
    assert spec.tables("all") == {"net": SPEC["net"], "method": SPEC["method"]}
    length = len(spec.model_dump_json())
    monkeypatch.setattr(run_spec, "LONGEST", length)
    assert spec.excess() == ""
    monkeypatch.setattr(run_spec, "LONGEST", length - 1)
    said = f"a run specification of {length} characters, and {length - 1} are the most"
    assert spec.excess() == said
    assert readable("a\x1b\n" + "b" * 300) == "a  " + "b" * 297 and readable("abc", 2) == "ab"
