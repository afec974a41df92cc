"""Our sources as trees, for the rules about them: each is parsed once in a process, all take two seconds."""

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
