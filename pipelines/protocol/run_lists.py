"""The live segments of the key stores, by store and bucket: pages on a stream; a `done` of the process leg names the last page.

Inside a `done` the lists would grow with buckets and segments, and every batch would repeat them. So a batch writes its changes as a page
(or several of PAGE_BYTES) before the `done` that refers to it. A page names its predecessor by sequence and digest, so the last page
identifies all of them, back to a first page without a predecessor. From time to time all lists are written anew and the older pages may be
purged. A page to which no `done` leads does not count: its writer was killed or fenced.

The stream is separate because pages are purged soon: between ledger entries that stay, NATS would not release their room (it hardly ever
rewrites a compressed block; nats-server 2.15: 1.1 GB a day instead of 3 MB, 64 buckets).
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pipelines.errors import ConflictError, DataLossError
from pipelines.protocol.bodies import PROCESS_CHAIN, PageReference, ProcessState
from pipelines.protocol.codec import Count, Digest, Form, StorePlace
from pipelines.protocol.ledger import Log, read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.records import digest

PAGE_BYTES = 256 * 1024
"""A larger page ends here: a bucket's list is some kilobytes, and NATS takes a megabyte."""
MOST_CHANGES = 64
"""Most consecutive batches that write their changes only; then all lists are written anew."""

Listing = list[list[Any]]
"""The live segments of a bucket, oldest first: name, rows, newest time, digest."""
Lists = dict[str, Listing]
"""Listings by store and bucket (`naming.listed_as`); one without a segment has none, or an empty one."""
Change = tuple[int, int, Listing, Listing]
Changes = dict[str, Change]


@dataclass(frozen=True)
class Offer(Form):
    """The output of a compaction for the `count` oldest segments of a bucket, whose `names` have this digest."""

    count: Count
    names: Digest
    output: Listing


@dataclass(frozen=True)
class Offers(Form):
    """The offers of one compaction, by store and bucket."""

    buckets: dict[StorePlace, Offer]


class RunLists:
    """Reads and writes the lists. Keeps the last lists read or written. Not thread-safe."""

    def __init__(self, log: Log, names: Names) -> None:
        self._log, self._stream, self._subject = log, names.stream("runs"), names.run_lists()
        self._reference: PageReference | None = None
        self._lists: Lists = {}
        self._end: int | None = None
        self._written: tuple[PageReference | None, Lists, PageReference | None] = (None, {}, None)
        """The last write: the reference before it, the lists, and the reference returned."""

    def of(self, reference: PageReference | None) -> Lists:
        """Return the lists to which a `done` refers. Raise DataLossError if a page is missing or is another one."""
        if reference != self._reference:
            self._lists = self._read(reference) if reference else {}
            self._reference = reference
        return dict(self._lists)

    def write(self, of_last: PageReference | None, lists: Lists) -> PageReference | None:
        """Write `lists`; return the reference for the next `done`.

        `of_last`: the reference of the last `done`, or None to begin anew. The written pages have no effect before that next `done`. The
        call may be repeated after a RetryableError, or if that `done` was not appended.
        """
        if self._written[:2] == (of_last, lists):
            self._reference, self._lists = self._written[2], dict(lists)
            return self._reference
        before, reference = self.of(of_last), self._reference
        changes = {
            bucket: _change(before.get(bucket, []), lists.get(bucket, []))
            for bucket in sorted({*before, *lists}, key=_place)
            if before.get(bucket, []) != lists.get(bucket, [])
        }
        if not changes:
            return reference
        if reference is None or reference.changes >= MOST_CHANGES:
            reference, changes = None, {bucket: _change([], listing) for bucket, listing in lists.items() if listing}
        self._reference, self._lists = self._append(reference, changes), dict(lists)
        self._written = (of_last, dict(lists), self._reference)
        return self._reference

    def _append(self, before: PageReference | None, changes: Changes) -> PageReference | None:
        reference = before
        for content in _pages(changes):
            after = [reference.last, reference.digest] if reference else None
            payload = json.dumps({"after": after, "changes": content}, separators=(",", ":")).encode()
            sequence = self._publish(payload)
            first = reference.first if reference else sequence
            reference = PageReference(first, sequence, digest(payload), before.changes + 1 if before else 0)
        return reference

    def _publish(self, payload: bytes) -> int:
        """Append a page, even if a runner that was fenced appends there, too."""
        while True:
            if self._end is None:
                message = self._log.last(self._stream, self._subject)
                self._end = message.sequence if message else 0
            expected, self._end = self._end, None
            with suppress(ConflictError):
                self._end = self._log.publish(self._subject, payload, {}, expected)
                return self._end

    def _read(self, reference: PageReference) -> Lists:
        pages: list[Changes] = []
        index: Any = [reference.last, reference.digest]
        while index:
            page = json.loads(self._page(*index))
            pages.append(page["changes"])
            index = page["after"]
        lists: Lists = {}
        for changes in reversed(pages):
            for bucket, (first, end, before, behind) in changes.items():
                lists[bucket] = [*before, *lists.get(bucket, [])[first:end], *behind]
        return {bucket: listing for bucket, listing in lists.items() if listing}

    def _page(self, sequence: int, expected: str) -> bytes:
        message = self._log.get(self._stream, sequence)
        if message is None or digest(message.payload) != expected:
            found = "missing" if message is None else "another one"
            raise DataLossError(
                f"reading the lists of runs: page {sequence} of {self._subject} is {found}; stop the pipeline and rebuild the key store "
                f"with `tallyflow rebuild-state`, or restore {self._stream} and the other streams from backups of one moment"
            )
        return message.payload


def _place(key: str) -> tuple[str, int]:
    """Return the sort key of the key of a list: the bucket counts as a number."""
    store, _, bucket = key.rpartition("/")
    return store, int(bucket)


def _pages(changes: Changes) -> Iterator[Changes]:
    page: Changes = {}
    size = 0
    for bucket, change in changes.items():
        page[bucket] = change
        size += len(json.dumps(change))
        if size > PAGE_BYTES:
            yield page
            page, size = {}, 0
    if page:
        yield page


def _change(before: Listing, after: Listing) -> Change:
    """Return (from, to, listing before them, listing after them): the stretch of listed segments that stay, and the others.

    A batch drops the oldest and merges the newest, a compaction replaces the oldest, so the segments that stay are one stretch.
    """
    indices = {run[0]: index for index, run in enumerate(after)}
    stays = [run in after for run in before]
    if not any(stays):
        return 0, 0, [], after
    first = stays.index(True)
    end = first + (stays[first:].index(False) if False in stays[first:] else len(stays) - first)
    start = indices[before[first][0]]
    if after[start : start + end - first] != before[first:end]:
        return 0, 0, [], after
    return first, end, after[:start], after[start + end - first :]


def digest_of_names(listing: Listing) -> str:
    """Return a name for these segments in this order, without naming each."""
    return digest("\n".join(run[0] for run in listing).encode())


def live_lists(log: Log, names: Names) -> tuple[ProcessState, Lists]:
    """Return the current chain of process, and the lists to which its last `done` refers; also beside a running pipeline."""
    while True:
        chain = read_chain(log, names, PROCESS_CHAIN)
        try:
            return chain, RunLists(log, names).of(chain.done.body.runs if chain.done else None)
        except DataLossError:
            # The leg may have advanced meanwhile, and its older pages may have been purged.
            if read_chain(log, names, PROCESS_CHAIN).sequence == chain.sequence:
                raise
