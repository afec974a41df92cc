"""The examples, of a checkout or as they were installed: a directory each, with a pipeline file, its cases, and `events.py`.

`events.py` makes the records of the example, and says what must become of them.
"""

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pipelines.demo.events import Events, Generator
from pipelines.errors import ConfigurationError, Fault
from pipelines.process.steps.join import KEPT
from pipelines.protocol.outcomes import WAITING
from pipelines.shipped import shipped

DIRECTORY = shipped("examples")

WindowFigures = dict[tuple[str, tuple[str, ...]], dict[str, Any]]
"""What the dashboard must show, by window and group: figures as exact digits, and the items of tops."""


@dataclass
class Account:
    """What must become of some events, by none of the pipeline's code.

    `rows`: by the id of the sink, which is empty if it is the only one. `untaken`: records that no sink takes. `dead_letters`: by code.
    `kept`, `waiting`: the right records of a join, and the left ones that no right one has met. `answer`: the rows of the example's
    question over the tables.
    """

    rows: Counter[str] = field(default_factory=Counter)
    untaken: int = 0
    filtered: int = 0
    duplicates: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    answer: Sequence[tuple[object, ...]] = ()
    kept: int = 0
    waiting: int = 0


def side_by_side(expected: Account, found: Account) -> Iterator[tuple[str, object, object]]:
    """Yield the parts of two accounts: the name, what is expected, what was found. A row that only one answer has is None in the other."""
    for sink in sorted({*expected.rows, *found.rows}):
        yield f"rows in ClickHouse{sink and f', {sink}'}", expected.rows[sink], found.rows[sink]
    yield "taken by no sink", expected.untaken, found.untaken
    yield "dropped by filter", expected.filtered, found.filtered
    yield "duplicates dropped", expected.duplicates, found.duplicates
    if expected.kept or found.kept:
        yield KEPT.label, expected.kept, found.kept
        yield WAITING.label, expected.waiting, found.waiting
    for code in sorted({*expected.dead_letters, *found.dead_letters}):
        yield f"dead letters, {code}", expected.dead_letters[code], found.dead_letters[code]
    for number, rows in enumerate(zip_longest(expected.answer, found.answer), 1):
        yield f"answer, row {number}", *rows


@dataclass(frozen=True)
class Beside:
    """The records of a further source: so many, sent before the example's own."""

    generator: Generator
    count: int


@dataclass(frozen=True)
class Example:
    """The records of an example, and what to ask of its table.

    `noun`: a record, for messages. `sample`: columns of the first table to show. `question`: a SELECT over `{table}`, or over the tables by
    the ids of their sinks, that `account` answers, too. `windows`: what the dashboard must show, of an example with rollups. `beside`: the
    records of the other sources, by their ids; those of `generator` are of the first one.
    """

    noun: str
    generator: Generator
    account: Callable[[Iterable[Events]], Account]
    sample: tuple[str, ...]
    question: str
    windows: Callable[[Iterable[Events]], WindowFigures] | None = None
    beside: Mapping[str, Beside] = field(default_factory=dict)

    def generator_of(self, source: str) -> Generator:
        """Return the generator of the records of a source."""
        return self.beside[source].generator if source in self.beside else self.generator


def example_file(name: str) -> Path:
    """Return the pipeline file of an example. Raise ConfigurationError if there is none."""
    found = {path.parent.name: path for path in DIRECTORY.glob("*/pipeline.yaml") if path.with_name("events.py").exists()}
    if not found:
        raise ConfigurationError("examples", [Fault("", f"{DIRECTORY} has none; install the wheel again, or work in a checkout")])
    if name not in found:
        raise ConfigurationError("examples", [Fault("", f"no example {name!r}; there are {', '.join(sorted(found))}")])
    return found[name]


def load_example(name: str) -> Example:
    """Load the `EXAMPLE` that events.py of an example states. Raise ConfigurationError if there is none."""
    path = example_file(name).with_name("events.py")
    spec = importlib.util.spec_from_file_location(f"examples.{name}.events", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    example = getattr(module, "EXAMPLE", None)
    if not isinstance(example, Example):
        raise ConfigurationError(str(path), [Fault("EXAMPLE", "must be an Example of pipelines.demo.examples")])
    return example


def variables(name: str, run: str) -> Mapping[str, str]:
    """Return the environment that gives a run of an example a pipeline, topics and a table of its own."""
    prefix, unique = name.upper(), f"{name}-demo-{run}"
    beside = {f"{prefix}_{source.upper()}_TOPIC": f"{unique}-{source}" for source in load_example(name).beside}
    return {**beside, f"{prefix}_PIPELINE": unique, f"{prefix}_TOPIC": unique, f"{prefix}_TABLE": unique.replace("-", "_")}
