"""The stations of a record in CONTRIBUTING.md are the files through which a real one goes."""

import re
import sys
import threading
from pathlib import Path
from types import FrameType

from support.leg_case import LegCase, event

import pipelines

ROOT = Path(pipelines.__file__).parent
ROOMS = ("engine/", "ingest/", "process/", "sink/")
"""What is above them starts the legs; what is beside them every leg uses."""
CODE = re.compile(r"`((?:engine|ingest|process|sink)/[a-z_/]+(?:\.py|/))`")
CHANGES = {
    "protocol/records.py": {"cut_frames"},
    "process/steps/parse/__init__.py": {"parse"},
    "process/steps/mapping/columns.py": {"map_columns"},
    "sink/inserts.py": {"chunk_rows", "insert_block", "insert"},
}
"""Where the bytes of a record become something else: a frame, rows, a block, an insert."""


def named() -> list[str]:
    text = (ROOT.parent / "CONTRIBUTING.md").read_text()
    table = text[text.index("**Where does my line go?**") :].split("\n\n", 2)[1]
    return CODE.findall(table)


def file_of(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""


class Walk:
    """The files on the stack at each of CHANGES; `met`: those of the changes themselves."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.met: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        file = file_of(frame) if event == "call" else ""
        if frame.f_code.co_name in CHANGES.get(file, ()):
            self.met.add(file)
            above: FrameType | None = frame
            while above is not None:
                self.files.add(file_of(above))
                above = above.f_back


def walked(directory: Path) -> set[str]:
    case, walk = LegCase(directory, buckets=2), Walk()
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        case.send([event(1)])
        case.go_on()
        case.deliver()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert (case.sink.ids, walk.met) == ([1], CHANGES.keys())
    return {file for file in walk.files if file.startswith(ROOMS)}


def station(file: str) -> str:
    """A folder of a room is one station."""
    room, _, rest = file.partition("/")
    folder, is_inside, _ = rest.partition("/")
    return f"{room}/{folder}/" if is_inside else file


def test_a_record_goes_through_the_stations_that_are_named(tmp_path: Path) -> None:
    assert {station(file) for file in walked(tmp_path)} == set(named())


def test_a_record_has_twelve_stations_and_enters_each_room_once() -> None:
    rooms = [name.partition("/")[0] for name in named()]
    assert len({*named()}) <= 12
    assert [room for room, before in zip(rooms, ["", *rooms], strict=False) if room != before] == ["engine", "ingest", "process", "sink"]
