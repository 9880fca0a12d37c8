from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.raising import raising
from wsm.errors import BadInputError
from wsm.states.words import MAX_VERSION as MAX_VERSION_OF_THE_WORD
from wsm.strategies import MAX_VERSION, errors, read_version, write_version
from wsm.strategies.files.version_file import parse_version


def test_the_largest_version_is_what_the_committed_word_can_carry():
    assert MAX_VERSION == MAX_VERSION_OF_THE_WORD


@pytest.mark.parametrize("version", [0, 7, MAX_VERSION])
def test_a_written_version_is_read_back(tmp_path, version):
    write_version(tmp_path, version)
    assert read_version(tmp_path) == version
    assert [path.name for path in tmp_path.iterdir()] == ["version.yaml"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step: 12345", 12345),
        ("step: '12345'", 12345),
        ('{"step": 3, "other": [1, 2]}', 3),
        ("# a remark\nother: x\nstep: 0\n", 0),
    ],
)
def test_a_step_may_be_an_integer_or_its_digits(tmp_path, text, expected):
    (tmp_path / "version.yaml").write_text(text)
    assert read_version(tmp_path) == expected


def test_a_missing_file_has_an_error_of_its_own(tmp_path):
    with raising(errors.VersionFileMissingError, match=r"version\.yaml does not exist"):
        read_version(tmp_path)
    with raising(errors.VersionFileMissingError):
        read_version(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not a mapping"),
        ("- 1\n- 2\n", "not a mapping"),
        ("12", "not a mapping"),
        ("version: 3", "0 fields called step"),
        ("step: 1\nstep: 2", "the key 'step' stands there twice"),
        ("step: [1", "not YAML"),
        ("\x00", "not YAML"),
        ("step: one", "no integer"),
        ("step: -1", "no integer"),
        ("step: 1.0", "no integer"),
        ("step: true", "no integer"),
        ("step: 012", "no integer"),
        ("step: 0x10", "no integer"),
        ("step: 1:30", "no integer"),
        ("step: [1]", "no integer"),
        ("step:", "no integer"),
        (f"step: {MAX_VERSION + 1}", "no integer"),
        ("step: " + "9" * 5000, "no integer"),
        ("[" * 5000, "not YAML"),
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
    with raising(errors.NotARegularFileError):
        read_version(tmp_path)


@pytest.mark.parametrize("value", [-1, MAX_VERSION + 1, True, "3", 1.0, None])
def test_what_is_no_version_is_not_written(tmp_path, value):
    with raising(errors.bad_version_number):
        write_version(tmp_path, value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    with raising(errors.StorageError):
        write_version(tmp_path / "nowhere", 1)


@given(
    st.binary(max_size=64) | st.text(alphabet="step: 0123456789-[]{}!&*\n'\"", max_size=40).map(str.encode)
)
def test_any_bytes_give_a_version_or_a_typed_error(data):
    try:
        version = parse_version(data, file="version.yaml")
    except BadInputError:
        return
    assert 0 <= version <= MAX_VERSION
