"""Hugging Face data sets, parquet files and torch data sets of dictionaries as federations."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedblocks as fb
from fedblocks.core import requirements

from .conftest import texts

MOODS = ["sad", "calm", "glad"]
ALL = (1.0, 0.0, 0.0)


def columns() -> dict[str, list[Any]]:
    """Texts as a tokenizer leaves them, with the words beside."""
    inputs, y, writer = texts()
    return {
        "text": ["some words"] * len(y),
        "input_ids": inputs["input_ids"].tolist(),
        "attention_mask": inputs["attention_mask"].tolist(),
        "mood": [MOODS[label] for label in y],
        "writer": [f"w{one}" for one in writer],
    }


def data_set() -> Any:
    import datasets

    return datasets.Dataset.from_dict(columns())


def check_texts(data: fb.Federation) -> None:
    """The words of the alphabet are the classes: calm, glad, sad."""
    inputs, y, writer = texts()
    assert data.fields is not None and data.fields.names == ("input_ids", "attention_mask")
    assert data.x.tolist() == np.concatenate(list(inputs.values()), 1).tolist()
    assert data.about["class_names"] == ["calm", "glad", "sad"]
    assert data.y.tolist() == [sorted(MOODS).index(MOODS[label]) for label in y]
    assert list(data.names) == ["w0", "w1", "w2", "w3", "w4"]
    assert data.train.sizes.tolist() == np.bincount(writer).tolist()


def test_a_data_set_object_is_a_client_for_each_user() -> None:
    check_texts(fb.Federation.from_hf(data_set(), "mood", "writer", split=ALL))


def test_a_saved_data_set_is_read_from_its_folder_and_by_its_name_in_a_configuration(
    tmp_path: Path,
) -> None:
    data_set().save_to_disk(tmp_path / "texts")
    check_texts(fb.Federation.from_hf(tmp_path / "texts", "mood", "writer", split=ALL))
    (tmp_path / "texts.toml").write_text(
        f"""
        rounds = 1
        [data]
        name = "hugging_face"
        options = {{ path = "{tmp_path / "texts"}", label = "mood", user = "writer" }}
        partition = {{ name = "by_user" }}
        split = [1.0, 0.0, 0.0]
        [net]
        name = "mlp"
        [method]
        name = "fedavg"
        """
    )
    config = fb.read_config(str(tmp_path / "texts.toml"))
    check_texts(fb.federation_of(config))


def test_a_part_of_several_is_chosen(tmp_path: Path) -> None:
    import datasets

    both = datasets.DatasetDict({"train": data_set(), "test": data_set().select([0, 9])})
    assert len(fb.Federation.from_hf(both, "mood", "writer", split=ALL).x) == 43
    assert len(fb.Federation.from_hf(both, "mood", "writer", part="test", split=ALL).x) == 2
    with pytest.raises(fb.DataError, match='no part "validation"'):
        fb.Federation.from_hf(both, "mood", "writer", part="validation")


def test_class_labels_of_a_data_set_keep_their_names_and_numbers() -> None:
    import datasets

    y = texts()[1].tolist()
    features = datasets.Features(
        {
            "a": datasets.Value("float32"),
            "b": datasets.Value("int32"),
            "label": datasets.ClassLabel(names=MOODS),
            "user": datasets.Value("int64"),
        }
    )
    rows = {"a": [0.5] * 43, "b": list(range(43)), "label": y, "user": texts()[2].tolist()}
    data = fb.Federation.from_hf(datasets.Dataset.from_dict(rows, features), split=ALL)
    assert data.about["class_names"] == MOODS and data.y.tolist() == y
    assert data.x[7].tolist() == [0.5, 7.0] and data.fields is None


def test_images_of_a_data_set_are_scaled() -> None:
    import datasets
    from PIL import Image

    pictures = [Image.new("RGB", (4, 2), (255, 51, 0)) for _ in range(4)]
    rows = {"image": pictures, "label": ["cat", "dog"] * 2, "user": ["a", "a", "b", "b"]}
    data = fb.Federation.from_hf(
        datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()), split=ALL
    )
    assert list(data.x.shape) == [4, 3, 2, 4]
    assert data.x[0, :, 0, 0].tolist() == pytest.approx([1.0, 0.2, 0.0])


def test_images_of_16_bits_are_scaled_and_those_of_no_known_range_are_refused() -> None:
    import datasets
    from PIL import Image

    def federation(kind: str) -> fb.Federation:
        pictures = [Image.fromarray(np.full((2, 2), 13107, kind)) for _ in range(4)]
        rows = {"image": pictures, "label": ["cat", "dog"] * 2, "user": ["a", "a", "b", "b"]}
        data = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
        return fb.Federation.from_hf(data, split=ALL)

    assert federation("uint16").x.unique().tolist() == [pytest.approx(0.2)]
    with pytest.raises(fb.DataError, match='row 0 of "image" in the data set are fractions'):
        federation("float32")


def test_texts_that_are_not_padded_and_words_as_inputs_are_refused_with_what_to_do() -> None:
    import datasets

    ragged = datasets.Dataset.from_dict({"ids": [[1], [2, 3]], "label": [0, 1], "user": [0, 1]})
    with pytest.raises(fb.DataError, match="of unlike length") as caught:
        fb.Federation.from_hf(ragged)
    assert 'padding="max_length"' in caught.value.fix
    with pytest.raises(fb.DataError, match='"text" of the data set holds words'):
        fb.Federation.from_hf(data_set(), "mood", "writer", ["text"])
    with pytest.raises(fb.DataError, match='no column "moods"') as caught:
        fb.Federation.from_hf(data_set(), "moods", "writer")
    assert '"mood"' in caught.value.fix
    with pytest.raises(fb.DataError, match="is not a data set of Hugging Face"):
        fb.Federation.from_hf([1, 2])
    with pytest.raises(fb.DataError, match='there is no column "user"'):
        fb.Federation.from_hf(data_set(), "mood")


def table(path: Path, **more: Any) -> Path:
    import pyarrow
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    rows = {
        "speed": rng.normal(size=40).astype("float32"),
        "gear": rng.integers(1, 6, 40),
        "range_km": rng.normal(size=40),
        "road": ["town", "field"] * 20,
        "truck": [f"t{k % 4}" for k in range(40)],
        **more,
    }
    pyarrow.parquet.write_table(pyarrow.table(rows), path)
    return path


def test_a_parquet_file_is_read_as_a_table_with_users(tmp_path: Path) -> None:
    path = table(tmp_path / "t.parquet")
    data = fb.Federation.from_parquet(path, "road", "truck", ["gear", "speed"], split=ALL)
    assert list(data.names) == ["t0", "t1", "t2", "t3"] and data.x.shape == (40, 2)
    assert data.about["columns"] == ["gear", "speed"]
    assert data.about["class_names"] == ["field", "town"] and data.y[:2].tolist() == [1, 0]
    with pytest.raises(fb.DataError, match=r'"road" of .* holds words'):
        fb.Federation.from_parquet(path, "gear", "truck")


def test_numbers_of_a_parquet_file_may_be_missing_targets_and_not_missing_inputs(
    tmp_path: Path,
) -> None:
    holes = [None, *range(39)]
    task = fb.Task("regression")
    path = table(tmp_path / "t.parquet", range_km=holes)
    data = fb.Federation.from_parquet(path, "range_km", "truck", ["speed"], task=task, split=ALL)
    assert data.y[:2].isnan().flatten().tolist() == [True, False]
    with pytest.raises(fb.DataError, match=r'row 0 of "range_km" in .* has no value'):
        fb.Federation.from_parquet(path, "road", "truck", ["range_km"])


def test_lists_of_a_parquet_file_are_fields(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns()), tmp_path / "t.parquet")
    chosen = ["input_ids", "attention_mask"]
    check_texts(
        fb.Federation.from_parquet(tmp_path / "t.parquet", "mood", "writer", chosen, split=ALL)
    )


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(fb.DataError, match="cannot be read as parquet"):
        fb.Federation.from_parquet(tmp_path / "t.parquet")
    with pytest.raises(fb.DataError, match="does not exist"):
        fb.Federation.from_parquet(tmp_path / "no.parquet")


class Items(torch.utils.data.Dataset[Any]):
    """A torch data set of dictionaries, as many collate functions expect them."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __len__(self) -> int:
        return len(self.fields["label"])

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {name: values[row] for name, values in self.fields.items()}


def test_dictionaries_of_a_torch_data_set_are_fields_with_words_as_labels_and_users() -> None:
    inputs, y, writer = texts()
    items = Items(
        input_ids=torch.from_numpy(inputs["input_ids"]),
        attention_mask=torch.from_numpy(inputs["attention_mask"]),
        label=[MOODS[label] for label in y],
        user=[f"w{one}" for one in writer],
    )
    check_texts(fb.Federation.from_torch(items, split=ALL))
    with pytest.raises(fb.DataError, match='no field "target"'):
        fb.Federation.from_torch(items, label="target")
    with pytest.raises(fb.DataError, match='field "user" of the data set holds words'):
        fb.Federation.from_torch(items, user="driver")
    numbers = Items(x=torch.ones(4, 3), label=[0, 1, 0, 1])
    with pytest.raises(fb.DataError, match='there is no field "user"'):
        fb.Federation.from_torch(numbers)


def test_one_field_of_a_torch_data_set_is_the_input_itself() -> None:
    items = Items(x=torch.ones(4, 3), label=[0, 1, 0, 1], user=torch.tensor([5, 5, 8, 8]))
    data = fb.Federation.from_torch(items, split=ALL)
    assert data.fields is None and data.x.shape == (4, 3) and list(data.names) == ["5", "8"]


def test_a_tuple_of_inputs_in_a_torch_data_set_is_given_by_place() -> None:
    pairs = [((torch.ones(2), torch.tensor(k)), k % 2) for k in range(6)]
    by_two = lambda y: fb.partitions.iid(y, clients=2)
    data = fb.Federation.from_torch(pairs, by_two, split=ALL)
    assert data.fields is not None and data.fields.names is None
    assert data.x[3].tolist() == [1.0, 1.0, 3.0]


def test_words_are_labels_of_arrays_too() -> None:
    data = fb.Federation.from_users(np.ones((4, 2)), ["b", "a", "b", "a"], [0, 0, 1, 1], split=ALL)
    assert data.y.tolist() == [1, 0, 1, 0] and data.about["class_names"] == ["a", "b"]


@pytest.mark.parametrize(
    ("extra", "package", "call"),
    [
        ("parquet", "pyarrow", lambda: fb.Federation.from_parquet("t.parquet")),
        ("hub", "datasets", lambda: fb.Federation.from_hf("folder")),
        ("hub", "transformers", lambda: fb.Net.from_pretrained("folder")),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    extra: str, package: str, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = requirements.find_spec
    monkeypatch.setattr(
        requirements, "find_spec", lambda name: None if name == package else there(name)
    )
    with pytest.raises(fb.UserError, match=f"needs the package {package}") as caught:
        call()
    assert caught.value.fix == f'pip install "fedblocks[{extra}]"'


def test_a_run_of_arrays_imports_none_of_the_packages() -> None:
    code = """
import sys
import numpy as np
import fedblocks as fb
from torch import nn
net = fb.Net.of(lambda: nn.Sequential(nn.Linear(2, 2)))
data = fb.Federation.from_users(np.ones((8, 2)), [0, 1] * 4, [0, 0, 0, 0, 1, 1, 1, 1])
fb.run(fb.FedAvg(net, lr=0.1), data, rounds=1, out="run")
extra = {"transformers", "datasets", "pyarrow", "pandas", "peft", "sklearn"} & set(sys.modules)
print("extra:", sorted(extra))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("extra: []")
