"""Text of others, made fit for a terminal and for a line of a log.

Names of tensors, files and segments, and what peers and engines say, may hold anything: line feeds that forge
a second line, escape sequences that a terminal obeys, marks that turn the order of the letters round.
"""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return `text` as one line that a terminal shows as it is.

    Whatever is no letter, mark, number, sign or blank stands there as Python would write it (``\n``,
    ``\x1b``, ``\u202e``, ``\udcff``). What is printable already is returned as it is.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def printable_lines(text: str) -> str:
    """Return `text` of several lines, each as :func:`printable` returns it; its own line feeds stay."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """Return JSON text that means the same and holds nothing but line feeds that a terminal does not show."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else _json_escaped(one) for one in text)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 tensor", "2 tensors"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size_text(count: int) -> str:
    """Return a number of bytes in the largest unit of which there is one."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return counted(count, "byte")


def _json_escaped(one: str) -> str:
    units = one.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
