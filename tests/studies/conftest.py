"""Studies are scripts; their parts are found beside them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "studies"))
