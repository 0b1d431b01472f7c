"""What is asked of the library that loads pretrained models, and what becomes of its answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fedblocks.core import pretrained
from fedblocks.core.errors import NetError
from fedblocks.core.fields import Fields


class Kind:
    """A class of transformers: of its weights the source has two tensors of three."""

    asked: dict[str, Any]
    error: Exception | None = None

    @classmethod
    def from_pretrained(cls, source: str, **options: Any) -> Any:
        cls.asked = {"source": source, "device": torch.empty(0).device.type, **options}
        if cls.error is not None:
            raise cls.error
        found = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False))
        with torch.no_grad():
            for number, value in enumerate(found.parameters()):
                value.fill_(number)
        return found, {"missing_keys": ["0.bias"], "mismatched_keys": [("1.weight", 3, 1)]}

    @staticmethod
    def from_config(settings: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False))


def test_weights_are_those_that_the_source_has_in_the_shape_of_the_model() -> None:
    with torch.device("meta"):  # where a net's size alone is asked for
        found = pretrained._weights(Kind, "folder", "settings")
    assert found.keys() == {"0.weight"} and found["0.weight"].tolist() == [[0.0] * 2] * 2
    assert Kind.asked == {
        "source": "folder", "device": "cpu", "config": "settings", "output_loading_info": True,
        "ignore_mismatched_sizes": True, "use_safetensors": True,
    }  # fmt: skip


def test_a_module_starts_with_the_weights_unless_it_has_no_numbers() -> None:
    weights = {"0.weight": torch.full((2, 2), 7.0)}
    made = pretrained._make(Kind, None, weights)
    assert made.state_dict()["0.weight"].tolist() == [[7.0] * 2] * 2
    with torch.device("meta"):
        assert pretrained._make(Kind, None, weights).state_dict()["0.weight"].is_meta


@pytest.mark.parametrize("error", [OSError, ValueError, RuntimeError])
def test_of_an_error_the_first_line_is_told(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kind, "error", error("\n  no such file\nand more"))
    with pytest.raises(NetError) as told:
        pretrained._weights(Kind, "folder", None)
    assert told.value.message == "the weights of folder cannot be read: no such file"

    def refuse(source: str, **config: Any) -> None:
        raise error(f"\n{config}\nand more")

    library = SimpleNamespace(AutoConfig=SimpleNamespace(from_pretrained=refuse))
    with pytest.raises(RuntimeError if error is RuntimeError else NetError) as told:
        pretrained._settings(library, "folder", {"num_labels": 5})
    if error is not RuntimeError:
        assert told.value.message == "there is no model folder: {'num_labels': 5}"


def test_a_kind_of_model_is_looked_up_and_its_outputs_are_logits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = SimpleNamespace(
        AutoModelForCausalLM=Kind,
        AutoConfig=SimpleNamespace(from_pretrained=lambda source, **config: (source, config)),
    )
    monkeypatch.setattr(pretrained, "import_module", lambda name: library)
    needed: list[tuple[str, ...]] = []
    monkeypatch.setattr(pretrained, "require_packages", lambda *names: needed.append(names))
    net = pretrained.load_pretrained(
        "folder", model="causal-lm", head="1", dtype=torch.float64, vocab_size=9
    )
    assert needed == [("a model of Hugging Face", "hub", "transformers")]
    assert Kind.asked["config"] == ("folder", {"vocab_size": 9})
    assert net.output == "logits" and net.dtype == torch.float64
    assert net.head.names == ("1.weight",) and net.init(0)["0.weight"].abs().sum() == 0
    assert net.fields is None
    fields = Fields.of({"tokens": torch.zeros(2, 3).long(), "mask": torch.ones(2, 3).long()})
    assert pretrained.load_pretrained("folder", fields, model="causal-lm").fields == fields
    with pytest.raises(NetError, match='"causal" is no kind of model'):
        pretrained.load_pretrained("folder", model="causal")
