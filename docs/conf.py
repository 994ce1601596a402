"""Sphinx's settings. The pages are staged first: `make docs` runs docs/generate/site.py, which says how."""

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
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["drawing.css", "site.css"]  # the first is the explorer's: docs/generate/site.py puts it there
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 4  # GitHub's anchors
myst_enable_extensions = ["colon_fence"]
pygments_style = "a11y-high-contrast-light"  # of accessible-pygments, which furo needs
pygments_dark_style = "a11y-high-contrast-dark"
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


def setup(app):  # type: ignore[no-untyped-def]
    """Napoleon takes "All threads: those that copy too" of a property for a type and its meaning: leave such alone."""
    kept = {}

    def keep(app, what, name, obj, options, lines):  # type: ignore[no-untyped-def]
        if what in ("property", "attribute") and not any(line.startswith("Raises:") for line in lines):
            kept[name] = list(lines)

    def restore(app, what, name, obj, options, lines):  # type: ignore[no-untyped-def]
        if name in kept:
            lines[:] = kept.pop(name)

    app.connect("autodoc-process-docstring", keep, priority=400)
    app.connect("autodoc-process-docstring", restore, priority=600)
