"""One format, with atheris, which coverage guides; importing this module instruments what it searches.

libFuzzer ends the process: with status 0 if nothing was found, else the input lies in the directory `found`.
Needs the extra ``fuzz``.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import atheris

# It names each module that it instruments.
with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["wsm.strategies"]):
    import fuzz.formats  # noqa: F401 - for the readers that it imports

from fuzz.invariant import INPUT_S, MEMORY_BYTES, Format, check


def search(form: Format, seconds: float, seed: int, found: Path) -> None:
    """Search; does not return."""
    corpus = found / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for index, sample in enumerate(form.samples):
        (corpus / f"sample-{index}").write_bytes(sample)
    options = [
        f"-max_total_time={max(round(seconds) - 1, 1)}",  # libFuzzer ends in the second after this
        f"-rss_limit_mb={MEMORY_BYTES >> 20}",
        f"-timeout={INPUT_S}",
        f"-seed={seed or 1}",
        f"-artifact_prefix={found}/",
        "-max_len=4096",
        "-print_final_stats=1",
    ]

    def one(data: bytes) -> None:
        check(form, data)

    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()
