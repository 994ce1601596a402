"""Sphinx's settings. The pages are staged first: `make docs` runs docs/generate/site.py, which says how."""

from peakgemm.version import __version__

project = "peakgemm"
author = "The peakgemm authors"
copyright = "The peakgemm authors, Apache-2.0"
version = release = __version__
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["_build"]
nitpicky = False

html_theme = "furo"
html_title = f"peakgemm {__version__}"
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["drawing.css", "site.css"]  # the first is the explorer's: docs/generate/site.py puts it there
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 4  # GitHub's anchors
myst_enable_extensions = ["colon_fence"]
pygments_style = "a11y-high-contrast-light"  # of accessible-pygments, which furo needs
pygments_dark_style = "a11y-high-contrast-dark"
highlight_language = "none"

# A link that is broken within the site fails the build; the others are not asked for: no network is needed.
linkcheck_ignore = [r"https?://.*"]
suppress_warnings: list[str] = []
