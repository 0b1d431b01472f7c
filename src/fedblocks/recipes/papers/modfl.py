"""ModFL's tables and figures (Liang, Srinivasan and Andresen, 2022), and stand-ins for
the data that few can get.
"""

from __future__ import annotations

from collections.abc import Callable

from fedblocks.recipes.papers import modfl_activities, modfl_images
from fedblocks.recipes.recipe import Recipe

MODFL: dict[str, Callable[[], Recipe]] = {
    "modfl-table1": modfl_images.table1,
    "modfl-table1-camera": modfl_images.table1_camera,
    "modfl-table1-readers": modfl_images.table1_readers,
    "modfl-table2": modfl_activities.table2,
    "modfl-table2-watch": modfl_activities.table2_watch,
    "modfl-figure5": modfl_images.figure5,
    "modfl-figure5-camera": modfl_images.figure5_camera,
    "modfl-figure6": modfl_images.figure6,
    "modfl-figure6-camera": modfl_images.figure6_camera,
    "modfl-figure7": modfl_activities.figure7,
    "modfl-figure7-watch": modfl_activities.figure7_watch,
}
