"""Hook of mkdocs: the script that draws the pictures comes with the site, so that a page is whole without a network."""

from importlib.util import find_spec
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

_SCRIPT = "assets/javascripts/mermaid.min.js"
_PICTURE = '<pre class="mermaid">'


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Return the files with mermaid's script, out of the package mermaidx. Raise FileNotFoundError without it."""
    found = find_spec("mermaidx")
    if found is None or found.origin is None:
        raise FileNotFoundError("the package mermaidx is not installed: make venv")
    files.append(File.generated(config, _SCRIPT, abs_src_path=str(Path(found.origin).with_name("assets") / "mermaid.js")))
    return files


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Return a page that has a picture with the script, which keeps the theme from fetching one from a public host."""
    if _PICTURE not in output:
        return output
    return output.replace("</body>", f'<script src="{get_relative_url(_SCRIPT, page.url)}"></script></body>')
