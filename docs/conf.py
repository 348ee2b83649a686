"""The site: every page as it lies in the repository, with navigation and search. `make site` builds it.

The source directory is the repository itself, so that pages read the same here and on GitHub, links included.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

import onepass

ROOT = Path(__file__).resolve().parent.parent

project, author, copyright = "onepass", "The onepass developers", "The onepass developers"
version = release = onepass.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "studies/**.md", "results/README.md"]
exclude_patterns = [".*", "build", "**/.*"]
nitpicky = True

myst_enable_extensions = ["html_image"]  # pictures with a width
myst_heading_anchors = 3  # links to headings, as GitHub makes them

highlight_language = "none"  # commands
default_role = "code"  # docstrings write `name`
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
nitpick_ignore_regex = [("py:.*", r"(?!onepass\.).*|.*\|.*")]  # other packages' names, and unions of them

html_theme = "furo"
html_title = "onepass"
html_extra_path = ["site"]
html_static_path = ["static"]
html_js_files = ["sort.js"]
html_css_files = ["sort.css"]
html_show_sourcelink = False
html_copy_source = False

FOLDER = re.compile(r"\[([^\]]+)\]\(([\w./-]+)\)")
LINK = re.compile(r"\]\(([^)#:]+\.md)\)")


def navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Make lists of links into the navigation: GitHub shows lists, and no directives."""
    if name == root_doc:
        for section in source[0].split("\n## ")[1:]:
            title, _, text = section.partition("\n")
            source[0] += toctree(LINK.findall(text), f":caption: {title}\n")
    elif name == "docs/methods/README":
        source[0] += toctree(LINK.findall(source[0]))
    elif name == "studies/README":
        source[0] += toctree([f"{page.parent.name}/README.md" for page in sorted(ROOT.glob("studies/*/README.md"))])


def folders(app: Sphinx, name: str, source: list[str]) -> None:
    """Links to folders are for GitHub: here their names stay as text."""
    here = (ROOT / name).parent
    source[0] = FOLDER.sub(lambda link: link[1] if (here / link[2]).is_dir() else link[0], source[0])


def toctree(links: list[str], caption: str = "") -> str:
    pages = "\n".join(link.removesuffix(".md") for link in dict.fromkeys(links))
    return f"\n\n```{{toctree}}\n:hidden:\n{caption}\n{pages}\n```\n"


def setup(app: Sphinx) -> None:
    app.connect("source-read", navigation)
    app.connect("source-read", folders)
