"""The devices of the shop's visitors, by the user agents of their browsers."""

from typing import Any

_BY_WORD = {"iPad": "tablet", "iPhone": "phone", "Android": "phone", "Windows": "desktop", "X11": "desktop", "Macintosh": "desktop"}


def of_click(click: dict[str, Any]) -> dict[str, Any]:
    """Return the device of a click: the first word that is known, "other" without one."""
    agent = click["user_agent"] or ""
    return {"device": next((device for word, device in _BY_WORD.items() if word in agent), "other")}
