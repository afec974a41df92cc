"""The legs of a pipeline and their neighbours: one ingest leg per source, process, one leg per sink of rows or dead letters. Pure.

Every fact of a kind of leg is here, in `bodies.CHAINS` or in `outcomes`, once; every other module asks. A table by kind that another module
needs is made with `for_every_kind`, so that a kind without an entry fails at import.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from pipelines.protocol import outcomes
from pipelines.protocol.bodies import CHAINS
from pipelines.protocol.ledger import ChainType
from pipelines.protocol.naming import CHAINS_BESIDE_LEGS, REDRIVE, leg_token, leg_token_text, role_token, source_of_subject

T = TypeVar("T")
RAW, OUT, DLQ = "raw", "out", "dlq"
"""The roles of the streams that legs read; further sinks of rows read streams of their own (`LegId.reads`)."""
NO_FALLBACKS: Mapping[str, str] = {}


@dataclass(frozen=True)
class _Kind:
    """A kind of leg. `reads`: the role of its input stream, None for a source. `writes`: the same of its output, None for a sink.

    `counted_in`: the total of its `done` that counts its input.
    """

    reads: str | None
    writes: str | None
    counted_in: str


_KINDS = {
    "ingest": _Kind(None, RAW, "offsets"),
    "process": _Kind(RAW, OUT, "rows_in"),
    "sink": _Kind(OUT, None, "rows_in"),
    "dead_letters": _Kind(DLQ, None, "rows_in"),
}
KINDS = tuple(_KINDS)
"""The kinds of legs, in the order of the data."""
INGEST, PROCESS, SINK, DEAD_LETTERS = KINDS


def for_every_kind(entries: Mapping[str, T]) -> Mapping[str, T]:
    """Return `entries`, a table by kind of leg. Raise TypeError for a kind that has no entry, and for an entry without a kind."""
    if entries.keys() != {*KINDS}:
        raise TypeError(f"a table by kind of leg has the entries {', '.join(entries)}; the kinds are {', '.join(KINDS)}")
    return entries


for_every_kind({kind: chain for kind, chain in CHAINS.items() if kind not in CHAINS_BESIDE_LEGS})
for_every_kind(outcomes.BY_KIND)


class LegId(str):
    """The id of a leg: its kind, and for every further source or sink, and every sink of dead letters, its name.

    Its text is `kind` or `kind:name`.
    """

    __slots__ = ()

    def __new__(cls, kind: str, name: str = "") -> "LegId":
        """Make an id. Raise ValueError for an unknown kind."""
        if kind not in _KINDS:
            raise ValueError(f"unknown kind of leg {kind!r}; the kinds are {', '.join(KINDS)}")
        return super().__new__(cls, f"{kind}:{name}" if name else kind)

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        """Return the arguments that make this id again, for copies."""
        return self.kind, self.name

    def __repr__(self) -> str:
        return f"LegId({self.kind!r}, {self.name!r})"

    @classmethod
    def parse(cls, text: str) -> "LegId":
        """Return the id with this text. Raise ValueError for any other text."""
        kind, mark, name = text.partition(":")
        if mark and not name:
            raise ValueError(f"the leg {text!r} has no name behind the colon")
        return cls(kind, name)

    @classmethod
    def of_token(cls, token: str) -> "LegId":
        """Return the id with this `token`. Raise ValueError for any other text."""
        found = cls.parse(leg_token_text(token))
        if found.token != token:
            raise ValueError(f"{token!r} is no token of a leg")
        return found

    @property
    def kind(self) -> str:
        """One of KINDS."""
        return str(self).partition(":")[0]

    @property
    def name(self) -> str:
        """The name of its source or sink; empty for the first one."""
        return str(self).partition(":")[2]

    @property
    def token(self) -> str:
        """The id in subjects, files and directories."""
        return leg_token(self)

    @property
    def chain(self) -> ChainType[Any, Any]:
        """The type of its chain on the ledger."""
        return replace(CHAINS[self.kind], leg=self)

    @property
    def reads(self) -> str | None:
        """The role of the stream that it reads, and where its lag is measured; None for a source."""
        role = _KINDS[self.kind].reads
        return role_token(role, self.name) if role == OUT and self.name else role

    @property
    def purges(self) -> str | None:
        """The role of the stream that it purges: what it alone reads. Dead letters have other readers, which redrive them."""
        return None if self.reads == DLQ else self.reads

    @property
    def input_role(self) -> str:
        """The role of the stream that it reads. Raise ValueError for a leg that reads a source."""
        if self.reads is None:
            raise ValueError(f"the leg {self} reads no stream")
        return self.reads

    @property
    def counted_in(self) -> str:
        """The total of its `done` that counts its input."""
        return _KINDS[self.kind].counted_in


def is_token(text: str) -> bool:
    """Return True for the token of a leg of a kind that this release knows."""
    try:
        LegId.of_token(text)
    except ValueError:
        return False
    return True


def _feeds(earlier: LegId, later: LegId) -> bool:
    """Return True if a leg of the kind of `later` reads what one of the kind of `earlier` writes."""
    written = _KINDS[earlier.kind].writes
    return written is not None and written == _KINDS[later.kind].reads


def takes_redriven(leg: LegId) -> bool:
    """Return True for the leg that reads redriven dead letters: redrive appends them to raw."""
    return leg.reads == RAW


def data_place(leg: LegId) -> tuple[int, str]:
    """Return the sort key for the order of the data; legs of a kind are sorted by name."""
    return KINDS.index(leg.kind), leg.name


def in_data_order(legs: Iterable[LegId]) -> list[LegId]:
    """Return the legs in the order of the data, those of a kind by name."""
    return sorted(legs, key=data_place)


@dataclass(frozen=True)
class Topology:
    """The legs of one pipeline, in the order of the data, and beside each the id of its source or sink in the pipeline file."""

    legs: tuple[LegId, ...]
    file_ids: tuple[str, ...]
    fallbacks: tuple[tuple[LegId, LegId], ...] = ()
    """Sink legs, and for each the later sink leg that takes the rows refused by it, and nothing else."""

    @classmethod
    def of(
        cls,
        sources: Sequence[str],
        sinks: Sequence[str],
        fallbacks: Mapping[str, str] = NO_FALLBACKS,
        dead_letters: Sequence[str] = (),
    ) -> "Topology":
        """Return the legs for these ids of sources and sinks. The first leg of a kind has no name, so that its subjects stay.

        `fallbacks`: the id of a fallback by that of the sink whose refused rows it takes. `dead_letters`: the ids of the sinks that take
        dead letters. Raise ValueError without a source or a sink of rows, for an id that is used twice, and for one that is empty behind
        the first.
        """
        return _topology(tuple(sources), tuple(sinks), tuple(fallbacks.items()), tuple(dead_letters))

    def of_kind(self, kind: str) -> tuple[LegId, ...]:
        """Return the legs of a kind."""
        return tuple(leg for leg in self.legs if leg.kind == kind)

    @property
    def ingests(self) -> tuple[LegId, ...]:
        """The ingest legs, in the order of the sources in the pipeline file."""
        return self.of_kind(INGEST)

    @property
    def sources(self) -> dict[LegId, str]:
        """The id of each source by the ingest leg that reads it, in the order of the pipeline file."""
        return {leg: self.file_id(leg) for leg in self.ingests}

    def ingest(self, source_id: str) -> LegId:
        """Return the ingest leg that reads a source. Raise ValueError for an id of no source."""
        for leg in self.ingests:
            if self.file_id(leg) == source_id:
                return leg
        raise ValueError(f"no source of this pipeline has the id {source_id!r}")

    @property
    def process(self) -> LegId:
        """The process leg."""
        return self.of_kind(PROCESS)[0]

    @property
    def sinks(self) -> tuple[LegId, ...]:
        """The sink legs of rows, in the order of the sinks in the pipeline file."""
        return self.of_kind(SINK)

    @property
    def dead_letters(self) -> tuple[LegId, ...]:
        """The legs that write dead letters to tables, in the order of the pipeline file."""
        return self.of_kind(DEAD_LETTERS)

    @property
    def tables(self) -> tuple[LegId, ...]:
        """The legs that write a table each: those of rows, then those of dead letters."""
        return (*self.sinks, *self.dead_letters)

    @property
    def outs(self) -> tuple[str, ...]:
        """The roles of the streams that the sinks read, in the order of the pipeline file."""
        return tuple(leg.input_role for leg in self.sinks)

    @property
    def routes(self) -> bool:
        """Whether process decides which sinks take a record."""
        return len(self.sinks) > 1

    @property
    def routed(self) -> tuple[LegId, ...]:
        """The sink legs for which process writes, in the order of the pipeline file: all but fallbacks."""
        return tuple(leg for leg in self.sinks if not self.refuser_of(leg))

    def file_id(self, leg: LegId) -> str:
        """Return the id of a leg's source or sink in the pipeline file; empty for process."""
        return self.file_ids[self.legs.index(leg)]

    def fallback_of(self, leg: LegId) -> LegId | None:
        """Return the sink leg that takes the rows that a sink refuses; None if they become dead letters."""
        return dict(self.fallbacks).get(leg)

    def refuser_of(self, leg: LegId) -> LegId | None:
        """Return the sink leg whose refused rows a fallback takes; None for any other leg."""
        return {taker: refuser for refuser, taker in self.fallbacks}.get(leg)

    def upstream(self, leg: LegId) -> tuple[LegId, ...]:
        """Return the legs whose output `leg` reads; none for a leg that reads a source."""
        if leg.kind == DEAD_LETTERS:
            return (self.process, *self.sinks)
        refuser = self.refuser_of(leg)
        return (refuser,) if refuser else tuple(earlier for earlier in self.legs if _feeds(earlier, leg))

    def up_to(self, legs: Collection[str]) -> tuple[LegId, ...]:
        """Return `legs` and every leg that lies before one of them, in the order of the data."""
        wanted = {leg for leg in self.legs if leg in legs}
        for leg in reversed(self.legs):
            if leg in wanted:
                wanted.update(self.upstream(leg))
        return tuple(leg for leg in self.legs if leg in wanted)

    def writes(self, leg: LegId) -> tuple[str, ...]:
        """Return the roles of the streams of rows that a leg writes for others: one per reader's stream; of a sink that of its fallback."""
        roles = [later.purges for later in self.legs if leg in self.upstream(later)]
        return tuple(dict.fromkeys(role for role in roles if role))

    @property
    def roles_between(self) -> tuple[str, ...]:
        """The roles of the streams between the legs, in the order of the data."""
        return tuple(dict.fromkeys(leg.reads for leg in self.legs if leg.reads))

    @property
    def downstream_first(self) -> tuple[str, ...]:
        """The chains in the order in which an account reads them: no leg then seems to have read what was not written.

        Redrive writes for process, so its chain comes behind that one and before the sources.
        """
        later = [leg for leg in reversed(self.legs) if leg.reads]
        return (*later, REDRIVE, *(leg for leg in self.legs if not leg.reads))

    def select(self, texts: Iterable[str]) -> tuple[LegId, ...]:
        """Return the legs that the texts name, in the order of the data; all legs if there is no text.

        A kind names all its legs, `kind:id` one of them. Raise ValueError for a text that names none.
        """
        named = [*texts]
        if unknown := [text for text in named if text not in self.names]:
            raise ValueError(f"unknown leg: {', '.join(unknown)}; the legs are {', '.join(self.options)}")
        return tuple(leg for leg in self.legs if not named or not {*named}.isdisjoint(self._texts(leg)))

    def option(self, leg: LegId) -> str:
        """Return the text that makes `select` return this leg alone."""
        return leg.kind if len(self.of_kind(leg.kind)) == 1 else f"{leg.kind}:{self.file_id(leg)}"

    @property
    def options(self) -> tuple[str, ...]:
        """The texts that select a leg each."""
        return tuple(self.option(leg) for leg in self.legs)

    @property
    def names(self) -> set[str]:
        """The texts that `select` takes."""
        return {text for leg in self.legs for text in self._texts(leg)}

    def _texts(self, leg: LegId) -> set[str]:
        return {leg.kind, f"{leg.kind}:{self.file_id(leg)}"}

    def ingest_of(self, raw_subject: str) -> LegId:
        """Return the leg that writes a raw subject. Raise ValueError for a subject of no source of this pipeline."""
        if len(self.ingests) == 1:
            return self.ingests[0]
        return self.ingest(source_of_subject(raw_subject))


@lru_cache(maxsize=64)
def _topology(
    sources: tuple[str, ...], sinks: tuple[str, ...], fallbacks: tuple[tuple[str, str], ...], dead_letters: tuple[str, ...]
) -> Topology:
    """Do `Topology.of`; a short run asks for the same one 90 times."""
    for kind, ids in ((INGEST, sources), (SINK, sinks)):
        if not ids or len({*ids}) < len(ids) or not all(ids[1:]):
            raise ValueError(f"the legs of kind {kind} need distinct ids, got {list(ids)}")
    if not all(dead_letters) or len({*sinks, *dead_letters}) < len(sinks) + len(dead_letters):
        raise ValueError(f"the legs of kind {DEAD_LETTERS} need distinct ids, got {list(dead_letters)}")
    legs: list[tuple[LegId, str]] = []
    for kind, ids in {INGEST: sources, PROCESS: ("",), SINK: sinks}.items():
        legs += [(LegId(kind, one if number else ""), one) for number, one in enumerate(ids)]
    legs += [(LegId(DEAD_LETTERS, one), one) for one in dead_letters]
    by_id = {one: leg for leg, one in legs if leg.kind == SINK}
    pairs = tuple((by_id[refuser], by_id[taker]) for refuser, taker in fallbacks if {refuser, taker} <= by_id.keys())
    return Topology(tuple(leg for leg, _ in legs), tuple(one for _, one in legs), pairs)


def chain_of(leg: str) -> ChainType[Any, Any]:
    """Return the type of a chain: of a leg's, or of work beside the legs."""
    return CHAINS[leg] if leg in CHAINS_BESIDE_LEGS else LegId.parse(leg).chain
