"""The `checks` of the pipeline file: what is compared when the table is judged, how strictly, and what holds the publication back.

They decide nothing about a record: the config version does not depend on them.
"""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from pipelines.config.base import Faults, Identifier, Model, Positive, Window, no_flag, ours, repeated

Severity = Literal["warn", "error"]
Percent = Annotated[float, Field(ge=0, le=100), BeforeValidator(no_flag)]


class Check(Model):
    """One check without thresholds of its own."""

    enabled: bool = ours(True, "False leaves the check out.")
    severity: Severity = ours("error", "`warn` or `error`: how a failure is shown.")
    blocking: bool = ours(True, "A failure of severity `error` holds the publication back.")

    @property
    def holds_back(self) -> bool:
        """True if a failure keeps the publication from being made."""
        return self.blocking and self.severity == "error"


class DuplicatesCheck(Check):
    """No position is in the table twice, and no key of the dedup within its window."""

    over: Window = ours(
        timedelta(days=1), "Keys are compared among the rows of the last so long, by arrival; positions in the whole table."
    )


class VerificationCheck(Check):
    """The newest verifications of the table found no difference."""

    over: Window = ours(timedelta(days=1), "Verified hours of the last so long are looked at.")


class FreshnessCheck(Check):
    """The table follows the topic."""

    blocking: bool = ours(False, "A failure of severity `error` holds the publication back.")
    warn_after: Window = ours(timedelta(minutes=2), "Records that wait while nothing was confirmed for so long are worth a warning.")
    fail_after: Window = ours(timedelta(minutes=10), "Records that wait while nothing was confirmed for so long are a failure.")

    def faults(self) -> Faults:
        if self.warn_after < timedelta(minutes=1):
            yield ("warn_after",), "must be at least 1m"
        if self.fail_after <= self.warn_after:
            yield ("fail_after",), "must be longer than warn_after"


class DeadLettersCheck(Check):
    """Few records are dead letters."""

    severity: Severity = ours("warn", "`warn` or `error`: how a failure is shown.")
    over: Window = ours(timedelta(hours=1), "Records of the last so long are counted.")
    max_percent: Percent = ours(
        1.0, "Largest share of them that may be dead letters, 0 to 100. Those that entered again or were discarded count no more."
    )


class ViewTotal(Model):
    """A table that a materialized view fills, and the column in which it counts the rows of the table."""

    table: Identifier = ours(..., "Target of the view, in the same database.")
    count_column: Identifier = ours(..., "Its column of counts: a number, or an aggregate state of `count` or `sum`.")


class ViewsCheck(Check):
    """What materialized views have made of the table adds up to its rows."""

    totals: tuple[ViewTotal, ...] = ours(
        (), "Views that aggregate, with their column of counts. Views that pass every row on are compared without being named."
    )

    def faults(self) -> Faults:
        for index, name in repeated(total.table for total in self.totals):
            yield ("totals", index, "table"), f"the table {name!r} is named twice"


class InsertWindowCheck(Check):
    """The table remembers enough insert tokens."""

    severity: Severity = ours("warn", "`warn` or `error`: how a failure is shown.")
    min_tokens: Positive = ours(
        100, "Insert tokens that the table and the targets of its views must remember; other writers use them up, too."
    )


class Checks(Model):
    """What is compared when the table is judged; all are on by default."""

    conservation: Check = ours(Check(), "Every leg has accounted for what it has read: the residue of the tally is 0.")
    duplicates: DuplicatesCheck = ours(DuplicatesCheck(), "No position twice, and no key twice within the window of the dedup.")
    gaps: Check = ours(
        Check(),
        "As many rows as the sink has confirmed, and no others. Leave it out where a TTL, the engine or people remove rows.",
    )
    verification: VerificationCheck = ours(VerificationCheck(), "The newest verifications of the table found no difference.")
    freshness: FreshnessCheck = ours(FreshnessCheck(), "The table follows the topic.")
    dead_letters: DeadLettersCheck = ours(DeadLettersCheck(), "Few records are dead letters.")
    schema_drift: Check = ours(Check(), "The table's columns are those of the mapping.")
    views: ViewsCheck = ours(ViewsCheck(), "Materialized views add up to the table.")
    insert_window: InsertWindowCheck = ours(InsertWindowCheck(), "The table remembers enough insert tokens.")
