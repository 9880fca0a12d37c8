"""``wsm fleet``: its table and its exit codes, and what a list and a token file must be."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.forkserver import FOR_COMMANDS
from tests.raising import raising
from wsm.cli import main
from wsm.fleet import Replica, read_replicas, update
from wsm.fleet.replicas import Connections, bad_replicas, token_in_the_clear

TOKEN = "a token that nobody sees".replace(" ", "-")


@pytest.mark.slow
@pytest.mark.processes
def test_the_exit_code_and_the_table_say_who_serves_it(make_fleet, store, tmp_path: Path, capfd) -> None:
    (replica,) = make_fleet(1)
    listed = tmp_path / "replicas.json"
    listed.write_text(json.dumps([{"url": replica.url, "group": replica.group.name}]))
    asked = ["fleet", "update", "1", "--store", str(store), "--replicas"]
    assert main.run([*asked, str(listed)]) == 0
    heading, row = capfd.readouterr().out.splitlines()
    assert heading.split() == ["replica", "version", "digest", "state", "seconds", "error"]
    assert row.split()[:2] == [replica.url, "1"]
    nobody = f"{replica.url},http://127.0.0.1:1"
    assert main.run([*asked, nobody, "--json"]) == 1
    said = json.loads(capfd.readouterr().out)
    assert [each["code"] for each in said["rows"]] == [None, "upstream-unreachable"]
    assert main.run([*asked, str(tmp_path / "nowhere")]) == 2
    assert main.run([*asked, f"{replica.url},{replica.url}"]) == 2


@pytest.mark.slow
@pytest.mark.processes
def test_ctrl_c_ends_with_130_and_the_same_call_converges(make_fleet, store) -> None:
    replicas = make_fleet(2)
    replicas[1].freeze()  # its look does not end
    urls = ",".join(each.url for each in replicas)
    asked = ["fleet", "update", "1", "--store", str(store), "--replicas", urls]
    outputs = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with FOR_COMMANDS.start("-m", "wsm", *asked, text=True, **outputs) as calling:
        assert any(json.loads(line)["state"] == "ready" for line in calling.stderr)
        calling.send_signal(signal.SIGINT)
        calling.stderr.read()
        assert calling.wait() == 130
    replicas[1].thaw()
    assert main.run(asked) == 0


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.needs("openssl")
def test_a_list_on_this_host_names_the_token_file_and_the_certificates_of_a_replica(
    make_fleet, store, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "1"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-subj", "/CN=wsm", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    lets_in, tokens, listed = (tmp_path / name for name in ("lets_in", "tokens", "replicas.json"))
    lets_in.write_text(f"admin {TOKEN}\n")
    lets_in.chmod(0o600)
    (replica,) = make_fleet(1, "--token-file", lets_in, "--tls-cert", certificate, "--tls-key", key)
    tokens.write_text(f"{replica.url} {TOKEN}\n")
    tokens.chmod(0o600)
    whole = {"url": replica.url, "ca": str(certificate), "token_file": str(tokens)}
    found = {}
    for left_out in ("token_file", "ca", "nothing"):
        listed.write_text(json.dumps([{name: each for name, each in whole.items() if name != left_out}]))
        report = update(store, 1, read_replicas(str(listed)))
        found[left_out] = report.exit_code, report.rows[0].code
        assert TOKEN not in str(report.rows[0].to_mapping())
    assert found == {
        "token_file": (1, "unauthorized"),
        "ca": (1, "upstream-unreachable"),
        "nothing": (0, None),
    }


@pytest.mark.parametrize(
    "content",
    ["[]", "{", '["http://a", "http://a/"]', '[{"url": "http://a", "token": "t"}]', '[{"group": "a"}]'],
)
def test_a_list_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    listed = tmp_path / "replicas.json"
    listed.write_text(content)
    with raising(bad_replicas):
        read_replicas(str(listed))


def test_a_token_goes_where_the_local_file_says_and_nowhere_else(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"https://replica.example:8300 {TOKEN}\nhttp://10.0.0.1:8300 {TOKEN}\n")
    with raising(bad_replicas):
        Connections(token_file=tokens)  # others may read it
    tokens.chmod(0o600)
    ways = Connections(token_file=tokens)
    for url in ("https://replica.example:8301", "https://replica.example.org:8300", "http://127.0.0.1:8300"):
        ways.require_safe([Replica(url)])
    with raising(token_in_the_clear) as refused:
        ways.require_safe([Replica("http://10.0.0.1:8300")])
    assert TOKEN not in str(refused.value)
    Connections(token_file=tokens, insecure=True).require_safe([Replica("http://10.0.0.1:8300")])
