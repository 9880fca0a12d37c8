"""Labels of versions for property tests, those that YAML takes for something else among them."""

from __future__ import annotations

import string

from hypothesis import strategies as st

FIRST = string.ascii_letters + string.digits + "_"
REST = FIRST + ".+=@:-"
#: What YAML or a careless reader takes for a number, a time, a date, a truth value or nothing.
TEMPTING = [
    "1_000",
    "0100",
    "00",
    "0o7",
    "0x1F",
    "1:30",
    "yes",
    "No",
    "on",
    "null",
    "1e3",
    "1.5",
    "2026-08-21",
    "0b1",
    "NaN",
]


def labels() -> st.SearchStrategy[str]:
    """Labels that a caller may give."""
    free = st.builds(str.__add__, st.sampled_from(FIRST), st.text(REST, max_size=127))
    numbers = st.integers(0, 10**128 - 1).map(str)
    return (free | numbers | st.sampled_from(TEMPTING)).filter(is_allowed)


def is_allowed(label: str) -> bool:
    """Whether nothing but its form could make it no label; says the rule in other words than wsm does."""
    return label not in ("latest", "newest") and not label.startswith("unnamed-")
