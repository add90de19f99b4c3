"""How Sphinx builds the site; `make docs` runs the pages, builds, and checks what was built."""

import os
import re
import sys
from pathlib import Path

from sphinx_gallery.sorting import ExplicitOrder

import condokit
from condokit import ConDoAdapter, datasets, report

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import make_data  # noqa: E402

project = "condokit"
author = "condokit developers"
copyright = "condokit developers, BSD-3-Clause"
release = condokit.__version__
version = release

extensions = [
    "matplotlib.sphinxext.plot_directive",
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates"]
nitpicky = False
smartquotes = False  # options and values are to be copied

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
add_module_names = False

plot_formats = [("png", 110)]
plot_html_show_formats = False
plot_html_show_source_link = False
plot_include_source = False
plot_working_directory = str(HERE / "_extra" / "data")
plot_rcparams = {"figure.autolayout": True}

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

# Examples on real data are shown, but not run, where the data are absent.
NEED_DATA = ("gene_expression", "photo_colours", "spectrometers")
HAS_DATA = bool(os.environ.get("CONDOKIT_DATA"))
_never = "demo" if HAS_DATA else "|".join(["demo", *NEED_DATA])
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": rf"/(?!({_never})\.py)",
    "ignore_pattern": r"demo\.py",
    "within_subsection_order": "FileNameSortKey",
    "subsection_order": ExplicitOrder(["../examples"]),
    "reference_url": {"condokit": None},
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("condokit",),
    "show_memory": False,
    "write_computation_times": False,
    "capture_repr": ("__repr__",),
    "min_reported_time": 1,
    "download_all_examples": True,
    "remove_config_comments": True,
    "matplotlib_animations": False,
    "plot_gallery": "True",
    "abort_on_example_error": True,
}

html_theme = "pydata_sphinx_theme"
html_title = "condokit"
html_static_path = ["_static"]
html_extra_path = ["_extra"]
html_css_files = ["site.css"]
html_favicon = "_static/logo.svg"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo.svg",
        "text": "condokit",
        "alt_text": "condokit, first page",
    },
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "navbar_end": ["theme-switcher"],
    "show_prev_next": True,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "github-dark",
}
html_sidebars = {"index": []}
html_context = {"default_mode": "auto"}


def write_extra(app: object) -> None:
    """Write the tables that pages offer, and the report that the first page shows."""
    make_data.main(HERE / "_extra" / "data")
    eeg = datasets.make_eeg(random_state=0)
    roles = {"domain": "device", "confounders": ["seizure"], "features": ["eeg_*"]}
    table = eeg.to_frame()
    adapter = ConDoAdapter(reference="v1").fit(table, **roles)
    report.save(HERE / "_extra" / "report.html", adapter, table, **roles, force=True)


def escape_stars(app: object, ctx: object, lines: list[str]) -> None:
    """Keep single stars of the command line's help, which are no emphasis."""
    lines[:] = [re.sub(r"(?<!\*)\*(?!\*)", r"\\*", line) for line in lines]


def show_epilog(app: object, ctx: object, lines: list[str]) -> None:
    """Show the examples at the end of the help as they are typed."""
    typed = [f"   {line.removeprefix('|').removeprefix(' ')}" for line in lines]
    lines[:] = [".. code-block:: text", "", *typed, ""] if any(lines) else []


def setup(app: object) -> None:
    """Register what is made anew at each build."""
    app.connect("sphinx-click-process-description", escape_stars)
    app.connect("sphinx-click-process-options", escape_stars)
    app.connect("sphinx-click-process-epilog", show_epilog)
    (HERE / "_extra").mkdir(exist_ok=True)
    app.connect("builder-inited", write_extra)
