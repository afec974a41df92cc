"""Commands on a terminal of 80 columns: every word that a wide one shows stands whole, and tables keep within the width."""

import re
from collections import Counter

import pytest
from support.dedup_case import copies, keyed_by
from support.pipeline_case import PipelineCase

pytestmark = pytest.mark.integration

COMMANDS = (
    ("status",),
    ("tally",),
    ("audit",),
    ("verify",),
    ("state",),
    ("why", "7"),
    ("diff",),
    ("lint",),
    ("plan show",),
    ("preview", "--from-topic", "30", "--rows", "20"),
    ("dlq groups",),
    ("dlq list",),
    ("tap", "--at", "dlq", "--from", "start", "--until-now"),
)
"""The words before the file, then the arguments behind it."""
_BORDERS = re.compile(r"[│┃─━┏┓┗┛┡┩├┤┬┴┼┳┻╇╈┌┐└┘╭╮╰╯]+")
_OF_TIME = re.compile(r"\d+(\.\d+)?(ms|s|m)?|\d\d:\d\d:\d\d.*")


def words(shown: str) -> Counter[str]:
    """The words, without those of the moment at which they were shown."""
    return Counter(word for word in _BORDERS.sub(" ", shown).split() if not _OF_TIME.fullmatch(word))


def test_no_word_is_cut_at_80_columns(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    case.send(copies(300))
    case.warm_run()
    lost = {}
    for name, *arguments in COMMANDS:
        given = (*name.split(), str(case.file), *arguments)
        wide, narrow = (case.invoke(*given, COLUMNS=width).output for width in ("300", "80"))
        assert narrow, name
        lost[name] = words(wide) - words(narrow)
        tables = [line for line in narrow.splitlines() if line[:1] in "│┃┏┡├└"]
        assert max(map(len, tables), default=0) <= 80, narrow
    assert {name: cut for name, cut in lost.items() if cut} == {}
