"""Hook of mkdocs: links from the pages to files of the checkout, which a site does not have."""

import re
from typing import Any

_OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./[^)\s]+\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with each link that leaves docs/ as its text alone."""
    return _OUTSIDE.sub(r"\1", markdown)
