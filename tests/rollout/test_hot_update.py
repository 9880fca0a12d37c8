"""Hot updates of whole rollout groups under load: every token is what the version that it names says."""

from __future__ import annotations

import pytest
from test_group import MODEL, PROMPTS, configuration, greedy, publish, until

from examples.rollout.supervisor import RolloutSupervisor

pytestmark = [pytest.mark.paddle, pytest.mark.processes, pytest.mark.slow]

KINDS = {
    "plain": ({}, {"capture_graphs": False}),
    "captured": ({}, {"capture_graphs": True}),
    "experts": ({"experts": 4}, {"routing_replay": True}),
    "draft": ({"draft_layers": 1}, {}),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_token_is_of_the_version_that_it_names_while_versions_are_flipped_under_load(kind):
    model, engine = KINDS[kind]
    config = configuration(f"hot-{kind}", model={**MODEL, **model}, engine=engine, load={"concurrency": 4})
    with RolloutSupervisor(config) as running, running.client() as client:
        digests = {}
        for version in (2, 3):
            publish(config, version)
        for version in (2, 3, 2):
            receipt = running.controller.update(version, hot=True)
            for report in receipt.ranks:
                assert digests.setdefault((version, report.rank), report.digest) == report.digest
                copied = report.facts["tensors_copied_in_place"]
                assert (copied == report.tensors) is (kind != "plain"), "captured addresses are kept"
            for prompt, answer in zip(PROMPTS, client.generate(PROMPTS, 6, temperature=0), strict=True):
                assert answer.versions == (str(version),) * 6
                assert answer.tokens == greedy(config, version, prompt, 6)
        until(lambda: running.load.tokens_by_version["2"] > 0)
        running.check()
