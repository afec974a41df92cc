"""The records of this example: logins, among them attacks from one network each, and what must become of them."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pyarrow as pa

from pipelines.demo.events import DUPLICATE, Events, Generator, Recipe, spoiled_by
from pipelines.demo.examples import Account, Example

BAD_KINDS = ("invalid_json", "wrong_type", "attempt_in_words", "no_event_id", "bad_address")
"""Cut-off JSON; a number as the status; an attempt that is no number; no id; an address that is none."""
CODES = {
    "invalid_json": "invalid_json",
    "wrong_type": "wrong_type",
    "attempt_in_words": "expression_error",
    "no_event_id": "null_key",
    "bad_address": "invalid_value",
}
"""The code of the dead letter of each bad kind."""
CHANGES: dict[str, dict[str, object]] = {
    "wrong_type": {"status": 401},
    "attempt_in_words": {"attempt": "many"},
    "no_event_id": {"event_id": None},
    "bad_address": {"ip_address": "nowhere"},
}
OF_ANY_STATUS = ("invalid_json", "wrong_type")
"""Kinds that are rejected before the filter could drop them."""

ATTACK_SHARE, FAILED_SHARE = 0.05, 0.22
ATTACKS_PER_BLOCK = 8
USERS = 500
ADMINS = ("payroll-admin", "vip-admin", "backup-admin")
COUNTRIES = ("US", "GB", "DE", "IN", "SG", "BR")
REASONS = ("invalid_password", "mfa_failed", "account_locked")
START = datetime(2026, 3, 21, 16, 40, tzinfo=UTC)


def render(recipe: Recipe, block: int) -> tuple[pa.Array, pa.Array]:
    """Render a login for each event of the block; return (keys, values without the closing brace)."""
    random = recipe.random(block, 2)
    count = recipe.block_events
    shares = zip(random.random(count).tolist(), random.random(count).tolist(), strict=True)
    numbers = random.integers(0, 1 << 30, (count, 4)).tolist()
    keys, values = [], []
    for row, ((attack, failed), (one, two, three, four)) in enumerate(zip(shares, numbers, strict=True)):
        is_attack = attack < ATTACK_SHARE
        source = one % ATTACKS_PER_BLOCK
        reason = REASONS[0] if is_attack else REASONS[four % len(REASONS)]
        is_failed = is_attack or failed < FAILED_SHARE
        login = {
            "event_id": str(UUID(int=(recipe.seed << 80 | block << 40 | row << 8) ^ one << 90, version=4)),
            "event_time": f"{START + timedelta(seconds=(block * count + row) // 50):%Y-%m-%dT%H:%M:%SZ}",
            "ip_address": _attacker(block, source, two) if is_attack else f"10.{one % 200}.{two % 250}.{three % 250 + 1}",
            "device_id": f"device-{three % 9_000 + 1_000}",
            "country": COUNTRIES[four % len(COUNTRIES)],
            "status": "failed" if is_failed else "success",
            "failure_reason": reason if is_failed else "",
            "attempt": str(two % 5 + 1),
        }
        keys.append(ADMINS[source % len(ADMINS)] if is_attack else f"user-{four % USERS:04}")
        values.append(json.dumps(login, separators=(",", ":"))[:-1])
    return pa.array(keys, pa.string()), pa.array(values, pa.string())


def account(events: Iterable[Events]) -> Account:
    """Return what must become of the logins: failed ones are rows, successful ones and copies are dropped."""
    found = Account()
    addresses: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for key, value, kind in (event for block in events for event in block):
        if kind in OF_ANY_STATUS:
            found.dead_letters[CODES[kind]] += 1
            continue
        login = json.loads(value or b"")
        if login["status"] == "success":
            found.filtered += 1
        elif kind == DUPLICATE:
            found.duplicates += 1
        elif kind in CODES:
            found.dead_letters[CODES[kind]] += 1
        else:
            found.rows[""] += 1
            network = login["ip_address"].rpartition(".")[0] + ".0/24"
            addresses[key.decode(), network][login["ip_address"]] += 1
    attacks = [(user, network, seen.total(), len(seen)) for (user, network), seen in addresses.items() if seen.total() >= 10]
    found.answer = sorted(attacks, key=lambda attack: (-attack[2], *attack[:2]))[:8]
    return found


def _attacker(block: int, source: int, number: int) -> str:
    return f"198.51.{(block * ATTACKS_PER_BLOCK + source) % 256}.{number % 20 + 20}"


EXAMPLE = Example(
    noun="login",
    generator=Generator(render, spoiled_by(CHANGES), BAD_KINDS),
    account=account,
    sample=("event_time", "user_id", "ip_address", "network", "failure_reason", "attempt", "severity"),
    question=(
        "SELECT user_id, network, count() AS attempts, uniqExact(ip_address) AS addresses FROM {table} "
        "GROUP BY user_id, network HAVING attempts >= 10 ORDER BY attempts DESC, user_id, network LIMIT 8"
    ),
)
