"""The `checks` of the pipeline file: which checks the table gets, how strict they are, and which block the publication.

They do not affect records: the config version does not depend on them.
"""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from pipelines.config.base import Faults, Identifier, Model, Positive, Window, no_flag, ours, repeated

Severity = Literal["warn", "error"]
Percent = Annotated[float, Field(ge=0, le=100), BeforeValidator(no_flag)]


class Check(Model):
    """A check without thresholds."""

    enabled: bool = ours(True, "False disables the check.")
    severity: Severity = ours("error", "Severity of a failure: `warn` or `error`.")
    blocking: bool = ours(True, "A failure of severity `error` blocks the publication.")

    @property
    def holds_back(self) -> bool:
        return self.blocking and self.severity == "error"


class DuplicatesCheck(Check):
    """No position is in the table twice, and no dedup key twice within its window."""

    over: Window = ours(
        timedelta(days=1), "Compare keys among the rows that arrived within this time; positions are compared in the whole table."
    )


class VerificationCheck(Check):
    """The newest verifications of the table found no difference."""

    over: Window = ours(timedelta(days=1), "Look at the verified hours within this time.")


class FreshnessCheck(Check):
    """The table follows the topic."""

    blocking: bool = ours(False, "A failure of severity `error` blocks the publication.")
    warn_after: Window = ours(timedelta(minutes=2), "Warn when records wait and none was confirmed for this long.")
    fail_after: Window = ours(timedelta(minutes=10), "Fail when records wait and none was confirmed for this long.")

    def faults(self) -> Faults:
        if self.warn_after < timedelta(minutes=1):
            yield ("warn_after",), "must be at least 1m"
        if self.fail_after <= self.warn_after:
            yield ("fail_after",), "must be longer than warn_after"


class DeadLettersCheck(Check):
    """Few records are dead letters."""

    severity: Severity = ours("warn", "Severity of a failure: `warn` or `error`.")
    over: Window = ours(timedelta(hours=1), "Count the records that arrived within this time.")
    max_percent: Percent = ours(
        1.0, "Largest share of them that may be dead letters, 0 to 100. Redriven and discarded dead letters do not count."
    )


class ViewTotal(Model):
    """A table that a materialized view fills, and its column that counts the rows of the pipeline's table."""

    table: Identifier = ours(..., "Target of the view, in the same database.")
    count_column: Identifier = ours(..., "Its count column: a number, or an aggregate state of `count` or `sum`.")


class ViewsCheck(Check):
    """Materialized views add up to the rows of the table."""

    totals: tuple[ViewTotal, ...] = ours(
        (), "Aggregating views, with their count column. Views that pass every row on are compared without being listed."
    )

    def faults(self) -> Faults:
        for index, name in repeated(total.table for total in self.totals):
            yield ("totals", index, "table"), f"the table {name!r} is named twice"


class InsertWindowCheck(Check):
    """The table remembers enough insert tokens."""

    severity: Severity = ours("warn", "Severity of a failure: `warn` or `error`.")
    min_tokens: Positive = ours(
        100, "Insert tokens that the table and the targets of its views must remember; other writers use up tokens too."
    )


class Checks(Model):
    """The checks of the table; all are enabled by default."""

    conservation: Check = ours(Check(), "Every leg accounts for every record it has read: the residue of the tally is 0.")
    duplicates: DuplicatesCheck = ours(DuplicatesCheck(), "No position appears twice, and no key twice within the dedup window.")
    gaps: Check = ours(
        Check(),
        "The table holds the rows that the sink confirmed, and no others. Disable it if a TTL, the engine or an operator removes rows.",
    )
    verification: VerificationCheck = ours(VerificationCheck(), "The newest verifications of the table found no difference.")
    freshness: FreshnessCheck = ours(FreshnessCheck(), "The table follows the topic.")
    dead_letters: DeadLettersCheck = ours(DeadLettersCheck(), "Few records are dead letters.")
    schema_drift: Check = ours(Check(), "The table's columns are those of the mapping.")
    views: ViewsCheck = ours(ViewsCheck(), "Materialized views add up to the table.")
    insert_window: InsertWindowCheck = ours(InsertWindowCheck(), "The table remembers enough insert tokens.")
