"""Settings of Sphinx. `generate` writes the pages of games, methods and names before a build."""

import gc
import os
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT)]
# before jax: the table of meshes needs devices, and the games compile more than they compute
FLAGS = {"xla_force_host_platform_device_count": 8, "xla_backend_optimization_level": 0}
if metadata.version("jaxlib").startswith("0.10."):  # a later jaxlib may not know these flags, and would end the process
    FLAGS |= {"xla_cpu_use_fusion_emitters": "false", "xla_cpu_parallel_codegen_split_count": 1}
os.environ.setdefault("XLA_FLAGS", " ".join(f"--{flag}={value}" for flag, value in FLAGS.items()))

gc.disable()  # the trees of 500 pages live on: to walk over them takes a sixth of the time
import docstrings  # noqa: E402
import generate  # noqa: E402
import markup  # noqa: E402
from sphinx.pycode import ModuleAnalyzer  # noqa: E402

import jaxmarl_llm  # noqa: E402

project, author, release = "jaxmarl_llm", "the authors of jaxmarl_llm", jaxmarl_llm.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc"]
if os.environ.get("DOCS_FULL"):  # sources beside the pages take as long as all else; other projects' names, the network
    extensions += ["sphinx.ext.viewcode", "sphinx.ext.intersphinx"]
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "jax": ("https://docs.jax.dev/en/latest", None),
        "numpy": ("https://numpy.org/doc/stable", None),
    }
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the tests execute the notebooks
autodoc_default_options = {"members": True, "undoc-members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
highlight_language = "text"
nitpicky = True
# Only our own names are on these pages, and no type variables.
nitpick_ignore_regex = [(r"py:.*", r"(?!jaxmarl_llm\.).*"), (r"py:class", r".*\.(State|Value)")]
html_theme = "sphinx_book_theme"
html_title = "jaxmarl_llm"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_theme_options = {
    "show_toc_level": 2,
    "show_navbar_depth": 1,
    "collapse_navbar": True,  # the whole tree on each of 500 pages takes a second a page to write
    "home_page_in_toc": True,
    "navbar_persistent": [],  # the sidebar has the search box
}


GENERATED = ("games/", "methods/", "notebooks/", "reference/")


def replace_links(app, page, source):
    if not page.startswith(GENERATED):
        source[0] = markup.links_of_docs(source[0], "../" * page.count("/"))


def setup(app):
    plain = ModuleAnalyzer.__init__
    ModuleAnalyzer.__init__ = lambda self, source, *names: plain(self, docstrings.mark_comments(source), *names)
    app.connect("builder-inited", lambda app: generate.main())
    app.connect("source-read", replace_links)
    app.connect("autodoc-process-docstring", docstrings.docstring)
    app.connect("autodoc-skip-member", docstrings.skip)
