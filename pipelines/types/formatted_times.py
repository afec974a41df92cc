"""Times in a format (`types.time_formats`) as the ISO 8601 texts that `types.instants` reads, a whole column at a time."""

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.types.time_formats import MONTHS, pattern
from pipelines.types.vectors import Mask, to_mask

_NOON_HOURS = 12


def iso_texts(texts: pa.Array, notation: str, is_date: bool = False) -> tuple[pa.Array, Mask]:
    """Return the texts as `YYYY-MM-DDThh:mm:ss` with fraction and zone, and the rows of another form, which are null.

    Without a time of day it is midnight. `is_date`: return the dates alone. A date that no calendar has, or an hour 24, is for the reader
    of the texts to find.
    """
    parts = pc.extract_regex(texts, pattern(notation))
    found = {field.name: pc.struct_field(parts, field.name) for field in parts.type}
    malformed = to_mask(pc.is_null(parts)) & to_mask(pc.is_valid(texts))
    written = [_year(found), "-", _month(found), "-", _padded(found["d"])]
    if not is_date:
        clock = [_hour(found), *(_padded(found[letter]) if letter in found else "00" for letter in "MS")]
        fraction = [".", found["f"]] if "f" in found else []
        written += ["T", clock[0], ":", clock[1], ":", clock[2], *fraction, *([found["z"]] if "z" in found else [])]
    return pc.binary_join_element_wise(*written, ""), malformed


def _padded(digits: pa.Array) -> pa.Array:
    return pc.utf8_lpad(digits, 2, "0")


def _year(found: dict[str, pa.Array]) -> pa.Array:
    if "Y" in found:
        return found["Y"]
    century = pc.if_else(pc.greater_equal(found["y"], "69"), "19", "20")
    return pc.binary_join_element_wise(century, found["y"], "")


def _month(found: dict[str, pa.Array]) -> pa.Array:
    if "m" in found:
        return _padded(found["m"])
    names = pc.utf8_slice_codeunits(pc.utf8_lower(found["b"] if "b" in found else found["B"]), 0, 3)
    return _padded(pc.add(pc.index_in(names, pa.array(MONTHS)), 1).cast(pa.string()))


def _hour(found: dict[str, pa.Array]) -> "pa.Array | str":
    if "H" in found:
        return _padded(found["H"])
    if "I" not in found:
        return "00"
    of_twelve = found["I"].cast(pa.int32())
    hour = pc.if_else(pc.equal(of_twelve, _NOON_HOURS), 0, of_twelve)
    afternoon = pc.equal(pc.utf8_lower(found["p"]), "pm")
    return _padded(pc.if_else(afternoon, pc.add(hour, _NOON_HOURS), hour).cast(pa.string()))
