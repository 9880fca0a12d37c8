"""A router of a fleet, and who asks it: ``python router.py ROUTABLE LOG ASKERS``.

Each asker asks again and again for text, of a replica that ROUTABLE lists now. Each try is a line in LOG:
when it began and ended, whom it asked, and the answer. The router ends with its standard input.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from pathlib import Path

import httpx

#: Seconds for one try, and from one request to the next.
PATIENCE_S = 30.0
BETWEEN_S = 0.05


def routable(listed: Path) -> list[str]:
    try:
        return listed.read_text().split()
    except FileNotFoundError:
        return []


def ask(listed: Path, log: Path, ended: threading.Event) -> None:
    with log.open("a", buffering=1) as lines, httpx.Client(timeout=PATIENCE_S, trust_env=False) as client:
        while not ended.wait(BETWEEN_S):
            urls = routable(listed)
            if not urls:
                continue
            url = random.choice(urls)  # noqa: S311 - any will do
            said = {"began": time.time(), "url": url, "status": 0, "tokens": []}
            try:
                answer = client.post(f"{url}/v1/completions", json={"prompt": "a", "model": "m"})
                said["status"] = answer.status_code
                if answer.status_code == 200:
                    said["tokens"] = answer.json()["tokens"]
                else:
                    said["why"] = answer.text[:300]
            except httpx.HTTPError as error:
                said["why"] = f"{type(error).__name__}: {error}"
            lines.write(json.dumps({**said, "ended": time.time()}) + "\n")


def main(listed: str, log: str, askers: int) -> None:
    ended = threading.Event()
    threads = [
        threading.Thread(target=ask, args=(Path(listed), Path(f"{log}.{one}"), ended))
        for one in range(askers)
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
