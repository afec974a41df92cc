"""Counts in messages: a number with its noun, in the singular or the plural."""


def count_of(count: int, noun: str) -> str:
    """Return the count with its noun, such as "1 position", "1,204 positions" or "0 copies"."""
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else f"{noun}s"
    return f"{count:,} {plural}"
