"""Every name on which several modules or runs must agree: streams, subjects, directories, insert tokens. Pure.

A pipeline id is `[a-z0-9-]`, so it is a valid subject token and stream name; source ids are free text and are escaped.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

STREAM_ID_KEY = "tallyflow-id"
SHAPE_KEY = "tallyflow-shape"

Partitions = TypeVar("Partitions", int, npt.NDArray[np.int32])

_SPECIAL = re.compile(r"[^A-Za-z0-9_-]")
_SPECIAL_IN_FILES = re.compile(r"[^a-z0-9_]")
_ESCAPED = re.compile(r"(?:=[0-9A-F]{2})+")


def subject_token(text: str) -> str:
    """Return `text` as one NATS subject token: characters outside `[A-Za-z0-9_-]` become `=XX` per UTF-8 byte. Injective."""
    return _escaped(text, _SPECIAL)


_TICK = "=tick"
_NAME_MARK = "=3A"
"""The colon of a leg's id in its token."""


def leg_token(leg: str) -> str:
    """Return a leg's id, `kind` or `kind:name`, as a token of subjects, files and directories. Injective.

    The name's characters outside `[a-z0-9_]` become `=XX` per UTF-8 byte, so that tokens joined by hyphens come apart again, and two tokens
    differ on a file system that ignores case.
    """
    kind, mark, name = leg.partition(":")
    return kind + (_NAME_MARK + _escaped(name, _SPECIAL_IN_FILES) if mark else "")


def leg_token_text(token: str) -> str:
    """Return the id whose `leg_token` this is; another text for any other token."""
    kind, mark, name = token.partition(_NAME_MARK)
    return f"{kind}:{unquote(name.replace('=', '%'), errors='replace')}" if mark else kind


def role_token(role: str, name: str) -> str:
    """Return the role of the stream of a named sink: unlike a hyphen, `_` is in no pipeline id, so that no two streams share a name."""
    return f"{role}_{_escaped(name, _SPECIAL_IN_FILES)}"


def _escaped(text: str, special: re.Pattern[str]) -> str:
    return special.sub(lambda character: "".join(f"={byte:02X}" for byte in character[0].encode()), text)


@dataclass(frozen=True)
class Names:
    """The names of one pipeline."""

    pipeline: str

    def stream(self, role: str) -> str:
        """Return the name of a stream; `role` is one of ROLES."""
        return f"tf-{self.pipeline}-{role}"

    def subjects(self, role: str) -> str:
        """Return the wildcard of all subjects of one stream."""
        return f"tf.{self.pipeline}.{role}.>"

    def raw(self, source: str, partition: int) -> str:
        return f"tf.{self.pipeline}.raw.{subject_token(source)}.{partition}"

    def tick(self) -> str:
        """Return the raw subject of frames without records, which only show that time has passed; no source has this token."""
        return f"tf.{self.pipeline}.raw.{_TICK}.0"

    def redriven(self, source: str, partition: int) -> str:
        """Return the subject of redriven dead letters, by the Kafka partition from which they came."""
        return f"tf.{self.pipeline}.raw.{subject_token(source)}.redrive.{partition}"

    def out(self, bucket: int, role: str = "out") -> str:
        """Return the subject of the rows of a bucket, on the stream `role` that a sink reads."""
        return f"tf.{self.pipeline}.{role}.{bucket}"

    def dead_letters(self, leg: str, bucket: int) -> str:
        return f"tf.{self.pipeline}.dlq.{leg_token(leg)}.{bucket}"

    def duplicates(self, bucket: int) -> str:
        return f"tf.{self.pipeline}.duplicates.{bucket}"

    def then_dropped(self, bucket: int) -> str:
        """Return the subject of the positions of records that dedup has accepted and a later step has dropped."""
        return f"tf.{self.pipeline}.duplicates.dropped.{bucket}"

    def chain(self, leg: str) -> str:
        """Return the subject of one leg's chain in the ledger."""
        return f"tf.{self.pipeline}.ledger.{leg_token(leg)}"

    def chains(self) -> str:
        """Return the wildcard of all chains, and of `compaction`."""
        return f"tf.{self.pipeline}.ledger.*"

    def lease(self, leg: str) -> str:
        return f"tf.{self.pipeline}.ledger.lease.{leg_token(leg)}"

    def run(self, token: str) -> str:
        """Return the subject at which the runner of one start answers its tasks; no stream holds it."""
        return f"tf.{self.pipeline}.run.{token}"

    def compaction(self) -> str:
        """Return the subject of the segments that a compaction offers to the process leg."""
        return f"tf.{self.pipeline}.ledger.compact"

    def lookup(self, table: str) -> str:
        """Return the subject of the snapshots of a look-up table that are offered to the process leg (`lookup_offers`)."""
        return f"tf.{self.pipeline}.ledger.lookup.{table}"

    def run_lists(self) -> str:
        """Return the subject of the pages that list the live segments of the key store (`run_lists.py`)."""
        return f"tf.{self.pipeline}.runs.dedup"

    def purged(self, role: str) -> str:
        """Return the subject of the purge decisions for a stream."""
        return f"tf.{self.pipeline}.ledger.purged.{role}"

    def config(self, version: str) -> str:
        """Return the subject of the stage configuration of one version, for the plans that name it."""
        return f"tf.{self.pipeline}.ledger.config.{version}"

    def code(self, digest: str) -> str:
        """Return the subject of the code of functions that configurations name by its digest."""
        return f"tf.{self.pipeline}.ledger.code.{digest}"

    def directory(self, home: Path) -> Path:
        """Return the pipeline's directory on this host.

        It holds a lock per leg, a directory per runner, and the key stores unless they have a URI.
        """
        return home / "pipelines" / self.pipeline

    def state_storage(self, directory: Path, state_uri: str) -> str:
        """Return the directory or URI that contains the key stores."""
        return _below(state_uri, self.pipeline) if state_uri else str(directory / "state")


DEDUP_STORE, RIGHT_STORE, LEFT_STORE = "dedup", "join-right", "join-left"
"""The key stores: accepted keys of dedup, and of a join the newest right records, and the left records that wait."""
SIDE_DEDUP_STORES = {False: "dedup-left", True: "dedup-right"}
"""The accepted keys of a dedup of one side of a join, by whether it is the right one."""


def listed_as(store: str, bucket: int) -> str:
    """Return the key of the list of one bucket's live segments of a store (`run_lists`): for dedup the bucket alone."""
    return str(bucket) if store == DEDUP_STORE else f"{store}/{bucket}"


def segments_place(state_storage: str, key: str) -> str:
    """Return the place of the segments that are listed under a key."""
    return _below(state_storage, key if "/" in key else f"{DEDUP_STORE}/{key}")


def lookup_storage(state_storage: str, table: str) -> str:
    """Return the place of the snapshots of a look-up table."""
    return _below(state_storage, f"lookups/{table}")


def _below(storage: str, name: str) -> str:
    path, mark, options = storage.partition("?") if "://" in storage else (storage, "", "")
    return f"{path.rstrip('/')}/{name}{mark}{options}"


ROLES = ("raw", "out", "dlq", "duplicates", "runs", "ledger")
"""Roles of streams; `all_roles` adds those of further sinks, and those that hold bodies of frames."""
REDRIVE = "redrive"
"""Name of the chain and the lease for taking dead letters: to redrive or to discard them."""
REPROCESS = "reprocess"
"""Name of the chain for making rows of the table anew under an edited mapping."""
CHAINS_BESIDE_LEGS = (REDRIVE, REPROCESS)
PUT_BACK = "put-back"
"""Name of the lease for putting rows back into the table, and for making them anew."""


def bucket_of_key(low_words: npt.NDArray[np.uint64], buckets: int) -> npt.NDArray[np.int64]:
    """Return the buckets of records with a key, by the low half of its hash; segments are sorted and indexed by the high half."""
    owners: npt.NDArray[np.int64] = (low_words % np.uint64(buckets)).astype(np.int64)
    return owners


def bucket_of_partition(partition: Partitions, buckets: int) -> Partitions:
    """Return the bucket of records without a key, for one partition or a column of them.

    It is a function of the Kafka partition alone, never of the task.
    """
    return partition % buckets


def is_redriven(subject: str) -> bool:
    """Return True for the raw subject of redriven dead letters."""
    return subject.split(".")[4:5] == ["redrive"]


def is_tick(subject: str) -> bool:
    """Return True for the raw subject of `Names.tick`."""
    return subject.split(".")[3:4] == [_TICK]


def is_then_dropped(subject: str) -> bool:
    """Return True for the subjects of `Names.then_dropped`, which share their stream with the kept copies."""
    return subject.split(".")[3:4] == ["dropped"]


def source_of_subject(subject: str) -> str:
    """Return the source id of a raw subject, also of redriven dead letters: the inverse of `subject_token`."""
    token = subject.split(".")[3]
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("=", "")).decode(), token)


def all_roles(streams: int, outs: Sequence[str] = ("out",)) -> tuple[str, ...]:
    """Return the roles of all streams of a pipeline, in the order in which they may be deleted: the ledger last.

    `outs`: those that the sinks read.
    """
    numbers = range(1, streams + 1) if streams > 1 else ()
    return (*(f"{role}-{number}" for role in ("raw", *outs) for number in numbers), *(role for role in outs if role not in ROLES), *ROLES)


def is_dealt(role: str) -> bool:
    """Return True for the role of a stream whose frames may leave their bodies on other streams (`frame_bodies`)."""
    return role.partition("_")[0] in ("raw", "out")


def body_number(subject: str, streams: int) -> int:
    """Return the number of the stream, from 1, on which frames of a subject leave their bodies; 0 if they have them themselves.

    It is a function of the subject alone, so the bodies of a subject are on one stream, in order.
    """
    if streams == 1:
        return 0
    _, _, role, *_, last = subject.split(".")
    return 1 + int(last) % streams if is_dealt(role) else 0


def body_streams(stream: str, streams: int) -> list[str]:
    """Return the streams that hold bodies of a stream's frames; none if its frames have them themselves."""
    has_bodies = streams > 1 and is_dealt(stream.rpartition("-")[2])
    return [f"{stream}-{number}" for number in range(1, streams + 1)] if has_bodies else []


def body_subject(subject: str, number: int) -> str:
    """Return the subject of the bodies of a subject's frames."""
    head, pipeline, role, rest = subject.split(".", 3)
    return f"{head}.{pipeline}.{role}-{number}.{rest}"


def stream_of_subject(subject: str) -> str:
    """Return the stream that holds one of our subjects, as `Names.stream` names it."""
    return "-".join(subject.split(".", 3)[:3])


def bucket_of_subject(subject: str) -> int:
    """Return the bucket of an out, dead-letter or duplicates subject."""
    return int(subject.rpartition(".")[2])


def insert_token(pipeline: str, stream_id: str, table: str, first: int, last: int, digest: str) -> str:
    """Return the ClickHouse `insert_deduplication_token` of a chunk: out sequences `first`..`last` (inclusive) and its rows' digest.

    The digest turns the silent loss of "same token, other rows" (reference/reliability.md 2.1, row 2) into a halt before the insert.
    """
    return f"tf:{pipeline}:{stream_id}:{table}:{first}-{last}:{digest}"


def fill_token(pipeline: str, stream_id: str, table: str, attempt: int, bounds: tuple[int, int, int]) -> str:
    """Return the insert token of a range of rows that a rollup's target is filled with: its cut, after which sequence, and to which."""
    cut, after, to = bounds
    return f"tf:{pipeline}:{stream_id}:{table}:fill-{attempt}:{cut}:{after}-{to}"


def inserts_of_chunk(pipeline: str, stream_id: str, first: int, last: int) -> str:
    """Name the inserts of a chunk, of every attempt and every start, for ClickHouse's `system.processes` (`log_comment`)."""
    return f"tallyflow {pipeline} {stream_id} {first}-{last}"
