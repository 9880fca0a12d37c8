"""The manifests that docs/kubernetes.md prints are valid, and probe what wsm answers without a token."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from wsm.http import Security

PAGE = (Path(__file__).parent.parent.parent / "docs" / "kubernetes.md").read_text()
MANIFESTS = list(yaml.safe_load_all(PAGE.partition("```yaml\n")[2].partition("```")[0]))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: each["kind"])
def test_every_manifest_of_the_page_is_valid(manifest):
    kubernetes_validate.validate(manifest, "1.31", strict=True)


def test_what_is_probed_is_told_without_a_token():
    security = Security(admin="0123456789abcdef")
    [pod] = [each["spec"]["template"]["spec"] for each in MANIFESTS if each["kind"] == "Deployment"]
    [server] = [each for each in pod["containers"] if each["name"] == "server"]
    probes = [server[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    for probe in probes:
        headers = [(b"host", b"10.0.0.7:8300"), (b"user-agent", b"kube-probe/1.31")]
        assert security.refusal("GET", probe["path"], "10.0.0.1", headers) is None
    assert security.refusal("GET", "/wsm/v1/status", "10.0.0.1", headers) is not None
