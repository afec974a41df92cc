"""The records of this example: clicks of a web shop, robots among them, and what must become of them."""

import json
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal

import pyarrow as pa

from pipelines.demo.events import DUPLICATE, Events, Generator, Recipe, spoiled_by
from pipelines.demo.examples import Account, Example

BAD_KINDS = ("invalid_json", "wrong_type", "amount_in_words", "negative_count")
"""Cut-off JSON; a text as the time; an amount that is no number; an item whose count is negative.

Only the table of purchases has the items, so of the last kind only purchases are rejected."""
CODES = {
    "invalid_json": "invalid_json",
    "wrong_type": "wrong_type",
    "amount_in_words": "expression_error",
    "negative_count": "out_of_range",
}
"""The code of the dead letter of each bad kind."""
CHANGES: dict[str, dict[str, object]] = {
    "wrong_type": {"at": "yesterday"},
    "amount_in_words": {"amount": "much"},
    "negative_count": {"items": [{"sku": "A1", "count": -1}]},
}
OF_ANY_AGENT = ("invalid_json", "wrong_type")
"""Kinds that are rejected before the filter could drop them."""

START_MS = 1_774_111_208_250
CLICK_MS = 20
VISITORS = 20_000
AGENTS = (
    "Mozilla/5.0 (X11)",
    "Mozilla/5.0 (iPhone)",
    "Mozilla/5.0 (Android 15)",
    "Googlebot/2.1",
    "Mozilla/5.0 (Windows NT)",
    "bingbot/2.0",
)
CAMPAIGNS = ("", "spring", "mail-7", "brand")
KINDS = ("view", "view", "view", "view", "view", "view", "cart", "purchase")


def render(recipe: Recipe, block: int) -> tuple[pa.Array, pa.Array]:
    """Render a click for each event of the block; return (keys, values without the closing brace)."""
    count = recipe.block_events
    keys, values = [], []
    for row, (who, agent, page, cents) in enumerate(recipe.random(block, 2).integers(0, 1 << 30, (count, 4)).tolist()):
        kind, campaign = KINDS[page % len(KINDS)], CAMPAIGNS[cents % len(CAMPAIGNS)]
        number = block * count + row
        click = {
            "event_id": f"{recipe.seed}-{number}",
            "at": START_MS + number * CLICK_MS,
            "kind": kind,
            "url": f"https://shop.example/p/{page % 900}" + (f"?utm_source=mail&utm_campaign={campaign}" if campaign else ""),
            "user_agent": AGENTS[agent % len(AGENTS)],
            "amount": f"{cents % 20_000 / 100:.2f}" if kind == "purchase" else None,
            "items": [{"sku": f"A{page % 9}", "count": cents % 3 + 1}] if kind != "view" else [],
        }
        keys.append(f"v-{who % VISITORS:06}")
        values.append(json.dumps(click, separators=(",", ":"))[:-1])
    return pa.array(keys, pa.string()), pa.array(values, pa.string())


def account(events: Iterable[Events]) -> Account:
    """Return what must become of the clicks: those of people are rows, robots and copies are dropped."""
    found = Account()
    clicks: Counter[str] = Counter()
    revenue: dict[str, Decimal] = dict.fromkeys(CAMPAIGNS, Decimal(0))
    for _, value, kind in (event for block in events for event in block):
        if kind in OF_ANY_AGENT:
            found.dead_letters[CODES[kind]] += 1
            continue
        click = json.loads(value or b"")
        if "bot" in click["user_agent"]:
            found.filtered += 1
        elif kind == DUPLICATE:
            found.duplicates += 1
        elif kind in CODES and (kind != "negative_count" or click["kind"] == "purchase"):
            found.dead_letters[CODES[kind]] += 1
        else:
            found.rows["clicks"] += 1
            campaign = click["url"].partition("utm_campaign=")[2]
            clicks[campaign] += 1
            if click["kind"] == "purchase":
                found.rows["purchases"] += 1
                revenue[campaign] += Decimal(click["amount"])
    found.answer = [(campaign, clicks[campaign], revenue[campaign]) for campaign in sorted(clicks)]
    return found


EXAMPLE = Example(
    noun="click",
    generator=Generator(render, spoiled_by(CHANGES), BAD_KINDS),
    account=account,
    sample=("at", "visitor", "kind", "path", "campaign", "device"),
    question=(
        "SELECT campaign, clicks, revenue FROM (SELECT campaign, count() AS clicks FROM {clicks} GROUP BY campaign) AS c "
        "JOIN (SELECT campaign, sum(amount) AS revenue FROM {purchases} GROUP BY campaign) AS p USING (campaign) ORDER BY campaign"
    ),
)
