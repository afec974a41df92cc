"""The records that `preview` and `diff` try: of a file, of the topic, of raw, or dead letters."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pipelines.cli import dlq
from pipelines.cli.arguments import since_instant
from pipelines.config import PipelineConfig, load
from pipelines.config.source_ids import chosen_source
from pipelines.config.table_model import FileTable
from pipelines.config.transforms.lookup import LookupConfig
from pipelines.protocol.naming import Names

if TYPE_CHECKING:
    from pipelines.connectors.nats.client import JetStream
    from pipelines.dead_letters.triage import Selection
    from pipelines.preview.stored import Span
    from pipelines.process.arrivals import Arrived

RAW_HELP = "Try stored raw records: those of the last 1h, since an instant, or of sequences such as 120..180."
DLQ_HELP = (
    "Try dead letters as `dlq list` selects them: a state such as waiting, all, or conditions such as stage=parse,since=1h (stage, group, "
    "since, until, key, state)."
)
KEYS_HELP = "Each line of --input begins with the key and a tab, as kcat -K '\\t' prints it."
SOURCE_HELP = "Source of the records, of a pipeline with several. Default: with --from-topic all of them."
_SELECTION = ("stage", "group", "since", "until", "key", "state")


def selection_of(text: str) -> "Selection":
    """Parse `--from-dlq`: a state, or `name=value` pairs with commas between them. Raise BadParameter for other text."""
    given = dict(part.partition("=")[::2] for part in text.split(",")) if "=" in text else {"state": text}
    if unknown := sorted(given.keys() - {*_SELECTION}):
        raise typer.BadParameter(f"no condition {unknown[0]!r}; known are {', '.join(_SELECTION)}", param_hint="--from-dlq")
    since, until = (since_instant(given[name]) if name in given else None for name in ("since", "until"))
    return dlq.selection(given.get("stage"), given.get("group"), since, until, given.get("key"), given.get("state", "waiting"))


def span_of(text: str) -> "Span":
    """Parse `--from-raw`. Raise BadParameter for text that names no range."""
    from pipelines.preview.stored import parse_span

    try:
        return parse_span(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from-raw") from None


@dataclass(frozen=True)
class Sample:
    """Where the records come from; one of the first four is given. `limit`: how many are read; of raw and of dead letters, whole frames.

    `source`: of the records of a file, or the only one whose topic is read. `has_keys`: a line of a file begins with the record's key.
    """

    file: Path | None = None
    from_topic: int | None = None
    from_dlq: str | None = None
    from_raw: str | None = None
    source: str | None = None
    limit: int = 10_000
    has_keys: bool = False

    def __post_init__(self) -> None:
        """Raise BadParameter unless one is given."""
        if sum(one is not None for one in (self.file, self.from_topic, self.from_dlq, self.from_raw)) != 1:
            raise typer.BadParameter("name the records to try: --input FILE, --from-topic N, --from-raw RANGE or --from-dlq SELECTION")
        if self.has_keys and self.file is None:
            raise typer.BadParameter("--with-keys is for the lines of --input; other records have their own keys")

    @property
    def needs_servers(self) -> bool:
        return self.file is None

    @contextmanager
    def frames(self, config: PipelineConfig) -> "Iterator[Iterator[Arrived]]":
        """Open the records as raw frames. Raise BadParameter for a file that cannot be read."""
        if self.from_dlq is None and self.from_raw is None:
            # What reads NATS and dead letters takes 0.1 s to import.
            yield iter(self._given(config))
            return
        from pipelines.preview.stored import dead_letter_frames, limited, raw_frames

        if self.from_dlq is not None:
            yield limited(dead_letter_frames(config, selection_of(self.from_dlq)), self.limit)
        elif self.from_raw is not None:
            with opened_raw(config, self.from_raw) as (log, names, span):
                yield limited(raw_frames(log, names, span).frames, self.limit)

    def _given(self, config: PipelineConfig) -> "list[Arrived]":
        from pipelines.connectors.sources import open_source
        from pipelines.preview.given import frames_of, newest_frames, of_lines

        if self.from_topic is not None:
            sources = [chosen_source(config, self.source)] if self.source else config.sources
            with ExitStack() as stack:
                opened = [(one, stack.enter_context(closing(open_source(config, one.source_id)))) for one in sources]
                return newest_frames(opened, self.from_topic)
        source = chosen_source(config, self.source).source_id
        assert self.file is not None
        try:
            with nullcontext(sys.stdin.buffer) if str(self.file) == "-" else self.file.open("rb") as lines:
                return frames_of(islice(of_lines(lines, source=source, has_keys=self.has_keys), self.limit), config.sources)
        except OSError as error:
            raise typer.BadParameter(f"cannot read {self.file}: {error.strerror}") from error
        except ValueError as error:
            raise typer.BadParameter(f"{self.file}: {error}", param_hint="--with-keys") from None


def load_for(file: Path, needs_servers: bool) -> PipelineConfig:
    """Load a pipeline file, with what only connections read if servers are needed: for records, or for a table that it looks up in."""
    if needs_servers:
        return load(file)
    config = load(file, offline=True)
    return load(file) if _asks_for_tables(config) else config


def _asks_for_tables(config: PipelineConfig) -> bool:
    """Return whether a pipeline looks up in a table that a server has."""
    read = [config.tables[asked.table] for transform in config.transforms if isinstance(asked := transform.config, LookupConfig)]
    return any(not (isinstance(table, FileTable) and table.is_local) for table in read)


@contextmanager
def opened_raw(config: PipelineConfig, text: str) -> "Iterator[tuple[JetStream, Names, Span]]":
    """Open the raw stream of a pipeline for `--from-raw`."""
    from pipelines.connectors.nats.client import JetStream

    span = span_of(text)
    with closing(JetStream.of(config).connect()) as log:
        yield log, Names(config.pipeline_id), span
