"""The documentation site: `make docs` builds it from the Markdown pages, without a
network and without a warning.
"""

from __future__ import annotations

import sys
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "fedblocks"
version = release = installed("fedblocks")
# all but the first are in _ext
extensions = ["myst_parser", "menu", "percent", "pictures", "reference"]
exclude_patterns = ["_ext/*", "conf.py", "generate.py", "faults.py", "check_links.py"]
nitpicky = True  # a reference that leads nowhere is a warning, and warnings end the build

myst_heading_anchors = 3  # links to headings work as they do where the Markdown is shown directly
myst_enable_extensions = ["colon_fence", "deflist"]
highlight_language = "text"  # of blocks without a language: tables, pictures of folders

html_theme = "furo"
html_title = f"fedblocks {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
