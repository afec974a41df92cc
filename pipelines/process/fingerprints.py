"""Fingerprints of dead letters: names of causes (stage, code, field, message without its numbers and quoted words).

A fingerprint is the same on every machine, and in every release that words the message alike.
"""

import hashlib
import re

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.types.vectors import one_chunk

CAUSE = ("stage", "code", "field", "message")
_MARK = "\x1f"
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def fingerprint(stage: str, code: str, field: str, message: str) -> str:
    """Return the name of a cause: 12 hex digits of the SHA-256 of its parts, without the message's numbers and quoted words."""
    plain = _NUMBER.sub("0", _QUOTED.sub("''", message))
    return hashlib.sha256(_MARK.join((stage, code, field, plain)).encode()).hexdigest()[:12]


def with_fingerprints(dead_letters: pa.Table) -> pa.Table:
    """Return `dead_letters` with the column `fingerprint`."""
    parts = [pc.fill_null(dead_letters.column(name), "") for name in CAUSE]
    causes = one_chunk(pc.binary_join_element_wise(*parts, _MARK)).dictionary_encode()
    # Never more marks than there are parts, whatever the message holds.
    known = pa.array([fingerprint(*cause.split(_MARK, len(CAUSE) - 1)) for cause in causes.dictionary.to_pylist()], pa.string())
    return dead_letters.append_column("fingerprint", known.take(causes.indices))
