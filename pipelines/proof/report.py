"""Tables for people, used by the command line and the demo."""

from rich.markup import escape
from rich.table import Table

from pipelines.proof.verification.result import Finding
from pipelines.protocol.tally import Tally


def tally_table(pipeline: str, found: Tally) -> Table:
    """Per leg what went in, where it went, what waits, and the residue (0 unless something is wrong)."""
    balance = "every event is accounted for" if found.residue == 0 else f"{found.residue:,} events are NOT accounted for"
    verdict = f"as the ledger tells it, {balance}; `tallyflow audit` proves it"
    title = f"tally of {pipeline}" + (f" since {found.since:%Y-%m-%d %H:%M:%S} UTC" if found.since else "")
    table = Table("leg", "in", "went to", "rows", "waiting before it", "residue", title=title, caption=verdict)
    for leg in (*found.legs, found.letters):
        outcomes = list(leg.outcomes.items())
        for index, (outcome, rows) in enumerate(outcomes):
            is_first = index == 0
            waiting = f"{leg.waiting:,}" + (" (a plan is open)" if leg.has_open_plan else "")
            table.add_row(
                leg.leg if is_first else "",
                f"{leg.rows_in:,}" if is_first else "",
                outcome,
                f"{rows:,}",
                waiting if is_first and leg.leg in ("process", "sink") else "",
                f"{leg.residue:,}" if is_first else "",
                end_section=index == len(outcomes) - 1,
            )
    return table


def verification_table(found: Finding) -> Table:
    """The examples of one finding: where each is, what must be there and what is."""
    column = f", column {found.column}" if found.column else ""
    shown = f"{len(found.examples):,} of {found.count:,}" if found.count > len(found.examples) else f"{found.count:,}"
    table = Table("Kafka", "raw position", "expected", "found", title=f"{found.kind} {found.place}{column}: {shown}")
    for one in found.examples:
        kafka = f"{one['topic']}/{one['partition']}/{one['offset']}" if one.get("topic") is not None else ""
        table.add_row(*(escape(str(text)) for text in (kafka, one.get("position", ""), one.get("expected", ""), one.get("found", ""))))
    return table
