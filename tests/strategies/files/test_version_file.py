from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.labels import labels
from tests.raising import raising
from wsm.labels import bad_version
from wsm.strategies import errors, read_version, write_version
from wsm.strategies.files.version_file import parse_version
from wsm.typed import bad_keyword


@given(labels())
def test_a_written_version_is_read_back_whatever_yaml_makes_of_it(label):
    with tempfile.TemporaryDirectory() as directory:
        write_version(directory, label)
        assert read_version(directory) == label
        assert [path.name for path in Path(directory).iterdir()] == ["version.yaml"]
        said = yaml.safe_load(Path(directory, "version.yaml").read_bytes())["step"]
        assert str(said) == label


@given(labels(), st.sampled_from(["step: '{}'", 'step: "{}"', '{{"step": "{}"}}', "step: !!str {}"]))
def test_a_label_is_read_as_it_is_written_in_quotes(label, form):
    assume(not label.endswith(":") or form.count('"') or form.count("'"))  # no plain scalar of YAML ends so
    assert parse_version(form.format(label).encode(), file="version.yaml") == label


@pytest.mark.parametrize(
    "label",
    [
        "08",
        "1.5",
        "2026-08-21",
        "global_step_1200",
        "a+b=c@d:e-f",
        "9" * 128,
        "y",
    ],
)
@pytest.mark.parametrize(
    "form", ["step: {}\n", "step: '{}'", 'step: "{}"', "# a remark\nother: [1]\nstep: {}"]
)
def test_a_step_that_yaml_reads_as_it_stands_is_the_label(label, form):
    assert parse_version(form.format(label).encode(), file="version.yaml") == label


@pytest.mark.parametrize(
    ("step", "label"),
    [
        ("0100", "64"),
        ("1_000", "1000"),
        ("0x10", "16"),
        ("1:30", "90"),
        ("1.50", "1.5"),
        ("+7", "7"),
        (".5", "0.5"),
        ("true", "True"),
        ("off", "False"),
        ("!!int '012'", "10"),
    ],
)
def test_a_plain_step_is_what_fastdeploy_reads_and_a_warning_names_both(step, label, caplog):
    assert str(yaml.safe_load(f"step: {step}")["step"]) == label
    assert parse_version(f"step: {step}".encode(), file="version.yaml") == label
    (line,) = caplog.messages
    assert f"says={step.split()[-1].strip(chr(39))} read_as={label}" in line


def test_a_padded_step_in_quotes_is_the_label(caplog):
    assert parse_version(b"step: '0100'", file="version.yaml") == "0100"
    assert caplog.messages == []


def test_a_missing_file_has_an_error_of_its_own(tmp_path):
    with raising(errors.version_file_missing, match=r"version\.yaml does not exist"):
        read_version(tmp_path)
    with raising(errors.version_file_missing):
        read_version(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not a mapping"),
        ("12", "not a mapping"),
        ("version: 3", "0 fields called step"),
        ("step: 1\nstep: 2", "the key 'step' stands there twice"),
        ("step: [1", "not YAML"),
        ("\x00", "not YAML"),
        ("step: one two", "no version"),
        ("step: -1", "no version"),
        ("step: null", "no version"),
        ("step: latest", "reserved"),
        ("step: unnamed-1.1.1", "reserved"),
        ("step: a/b", "no version"),
        ("step:", "no version"),
        ("step: |\n  7\n", "no version"),
        ("step: " + "9" * 129, "no version"),
        ("[" * 1000, "not YAML"),
        ('step: "\\UFFFFFFFF"', "not YAML"),
        ('step: "\\U00110000"', "not YAML"),
        ("a: " + "x" * (1 << 17), "larger than"),
    ],
)
def test_anything_else_is_refused_with_the_file_and_the_rule(tmp_path, text, problem):
    (tmp_path / "version.yaml").write_text(text)
    with raising(errors.bad_version_file, match=problem) as caught:
        read_version(tmp_path)
    assert str(tmp_path / "version.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_directory_in_its_place_is_refused(tmp_path):
    (tmp_path / "version.yaml").mkdir()
    with raising(errors.not_a_regular_file):
        read_version(tmp_path)


@pytest.mark.parametrize("value", [-1, True, "", "a b", 1.0, None, "newest", ".hidden", "a" * 129])
def test_what_is_no_version_is_not_written(tmp_path, value):
    with raising((bad_version, bad_keyword)):
        write_version(tmp_path, value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    with raising(errors.StorageError):
        write_version(tmp_path / "nowhere", 1)
