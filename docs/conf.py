"""Sphinx's settings. The pages are staged first: `make docs` runs tools/site.py, which says how."""

from peakgemm.version import __version__

project = "peakgemm"
author = "The peakgemm authors"
copyright = "The peakgemm authors, Apache-2.0"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["_build"]
nitpicky = False

html_theme = "furo"
html_title = f"peakgemm {__version__}"
html_static_path: list[str] = []
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 4  # GitHub's anchors
myst_enable_extensions = ["colon_fence"]
pygments_style = "friendly"
pygments_dark_style = "monokai"
highlight_language = "none"

default_role = "code"  # `name` in a docstring
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# A link that is broken within the site fails the build; the others are not asked for: no network is needed.
linkcheck_ignore = [r"https?://.*"]
suppress_warnings: list[str] = []
