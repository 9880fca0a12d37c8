"""The page of incidents names a test for each, and each mark of a test has its row there."""

from __future__ import annotations

from tests.incident import PAGE, marked, rows, with_tests


def test_each_incident_has_a_test_and_each_mark_its_incident() -> None:
    numbers = [number for number, _ in rows(PAGE.read_text())]
    assert sorted(set(numbers)) == sorted(numbers), "a number stands in the first place of two rows"
    assert set(marked()) == set(numbers)


def test_the_page_is_as_python_m_tests_incident_writes_it() -> None:
    assert with_tests(PAGE.read_text()) == PAGE.read_text()
