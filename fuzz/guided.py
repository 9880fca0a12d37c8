"""``python -m fuzz.guided NAME SECONDS SEED OUT``: one format, with atheris, which coverage guides.

libFuzzer ends the process: with status 0 if nothing was found, else with what was found in OUT. Needs the
extra ``fuzz``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["wsm.strategies"]):
    from fuzz.formats import all_formats

from fuzz.invariant import INPUT_S, MEMORY_BYTES, check


def main() -> None:
    """Search; does not return."""
    name, seconds, seed, found = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    form = all_formats()[name]
    corpus = found / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for index, sample in enumerate(form.samples):
        (corpus / f"sample-{index}").write_bytes(sample)
    options = [
        f"-max_total_time={max(round(seconds), 1)}",
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


if __name__ == "__main__":
    main()
