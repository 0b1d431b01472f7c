"""Arguments of test-beds and loaders reach what they are for; stand-ins write them down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedblocks.core.errors import DataError
from fedblocks.data.federation import Federation
from fedblocks.data.pools import DataPool
from fedblocks.data.sets.har_groups import FIVE, FOUR, FOUR_WATCH
from fedblocks.data.sets.own import image_folder
from fedblocks.data.testbeds import unlike, users
from fedblocks.data.testbeds.modfl import COMMON


class Written:
    """A function that writes down what it is called with."""

    def __init__(self, answer: Any = None) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.answer = answer

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls.append((args, options))
        return self.answer


def two_clients() -> Federation:
    return Federation.from_arrays(np.ones((4, 1), np.float32), [0, 1] * 2, [[0, 1], [2, 3]])


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, answer: Any) -> Written:
    written = Written(answer)
    monkeypatch.setattr(unlike, name, written)
    return written


def test_signals_side_by_side_are_grouped_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hapt", "realworld", "wisdm", "wisdm51"):
        stand_in(monkeypatch, f"{name}_recordings", name)
    group = stand_in(monkeypatch, "har_groups", two_clients())
    options = {"clients": 3, "per_group": 1, "per_label": 7, "seed": 5}
    made = unlike.modfl_movements(**options)  # type: ignore[arg-type]
    assert group.calls == [
        ((name, steps), {**options, "activities": FIVE})
        for name, steps in (("hapt", 128), ("realworld", 128), ("wisdm", 52))
    ]
    assert made.about["name"] == "hapt+realworld+wisdm"
    group.calls.clear()
    unlike.modfl_phone_and_watch(**options)  # type: ignore[arg-type]
    assert group.calls == [
        (("hapt", 128), {**options, "activities": FOUR}),
        (("wisdm51", 52), {**options, "activities": FOUR_WATCH}),
    ]


def test_photographs_side_by_side_are_divided_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cifar10", "stl10"):
        stand_in(monkeypatch, name, name)
    images = stand_in(monkeypatch, "modfl_images", two_clients())
    drawn = stand_in(monkeypatch, "sample", "drawn")
    camera = stand_in(monkeypatch, "other_camera", "seen")
    clients = stand_in(monkeypatch, "modfl_clients", two_clients())
    options = {"clients": 3, "per_group": 1, "per_label": 7, "seed": 5}
    unlike.modfl_photographs(("cifar10", "stl10", "other_camera"), side=9, **options)  # type: ignore[arg-type]
    assert images.calls == [(("cifar10",), options), (("stl10",), options)]
    assert drawn.calls == [(("cifar10", COMMON["cifar10"], 7), {"skip": 7, "seed": 5})]
    assert camera.calls == [(("drawn", 9), {"seed": 5})]
    assert clients.calls == [(("seen", 3, 1, 5), {})]


def test_readers_of_digits_side_by_side_are_divided_as_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unlike, "READERS", {"mnist_writers": lambda: "m", "digits": lambda: "d"})
    drawn = stand_in(monkeypatch, "sample", "drawn")
    clients = stand_in(monkeypatch, "modfl_clients", two_clients())
    made = unlike.modfl_readers(clients=3, per_group=2, per_label=7, seed=5)
    assert drawn.calls == [((name, range(10), 7), {"seed": 5}) for name in ("m", "d")]
    assert clients.calls == [(("drawn", 3, 2, 5), {})] * 2
    assert made.about["name"] == "mnist_writers+digits"


def test_digits_are_scaled_to_mean_0_and_deviation_1() -> None:
    x = unlike.scaled_digits().x
    assert abs(float(x.mean())) < 1e-3 and abs(float(x.std()) - 1) < 1e-3


def test_people_and_users_are_split_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = DataPool(torch.rand(60, 1), torch.arange(60) % 2, 3, users=np.repeat([1, 2, 3], 20))
    everybody = Federation.from_users(
        pool.x, pool.y, pool.users, split=(0.6, 0.2, 0.2), seed=5, classes=3
    )
    by_hand = users.thin_rows(users.draw_users(everybody, 2, 8, 5), 9)
    made = users.some_users(pool, 2, 9, 8, 5)
    assert made.hash() == by_hand.hash() and made.classes == 3
    assert made.train.sizes.tolist() == [9, 9] and made.test.sizes.tolist() == [3, 3]

    class Signals:
        federation = staticmethod(lambda: everybody)

    load = Written(Signals)
    monkeypatch.setattr(users, "SIGNALS", {"hapt": load})
    assert users.some_people("hapt", 2, 9, 8, 5).hash() == by_hand.hash()
    assert load.calls == [((), {"split": (0.6, 0.2, 0.2), "seed": 5})]


def picture(path: Path, pixels: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.array(pixels, np.uint8)).save(path)


def test_images_have_colours_first_and_classes_by_name_also_those_without_images(
    tmp_path: Path,
) -> None:
    """A picture of one line: a red pixel, and a blue one of a fifth of the brightness."""
    line = [[[255, 0, 0], [0, 0, 51]]]
    picture(tmp_path / "c" / "0.png", line)
    picture(tmp_path / "a" / "0.png", line)
    (tmp_path / "b").mkdir()
    pool = image_folder(str(tmp_path))
    assert pool.x.shape == (2, 3, 1, 2) and pool.x.is_contiguous() and pool.users is None
    red, green, blue = pool.x[0, :, 0].tolist()
    assert red == [1, 0] and green == [0, 0] and blue == pytest.approx([0, 0.2])
    assert pool.y.tolist() == [0, 2] and pool.classes == 3
    assert pool.about["class_names"] == ["a", "b", "c"]
    picture(tmp_path / "c" / "1.png", [line[0], line[0]])
    with pytest.raises(DataError, match=r"1\.png has another size than .*a.0\.png"):
        image_folder(str(tmp_path))
    assert image_folder(str(tmp_path), side=4).x.shape == (3, 3, 4, 4)


def test_images_by_user_have_users_and_a_mixture_is_refused(tmp_path: Path) -> None:
    line = [[[255, 0, 0]]]
    for user, label in (("u", "x"), ("u", "y"), ("v", "y")):
        picture(tmp_path / user / label / "0.png", line)
    pool = image_folder(str(tmp_path))
    assert pool.users is not None and pool.users.tolist() == ["u", "u", "v"]
    assert pool.y.tolist() == [0, 1, 1] and pool.about["class_names"] == ["x", "y"]
    picture(tmp_path / "u" / "0.png", line)
    with pytest.raises(DataError, match="images both by class and by user"):
        image_folder(str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="there are no images by class"):
        image_folder(str(tmp_path / "empty"))
