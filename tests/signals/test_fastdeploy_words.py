from __future__ import annotations

import ctypes.util
import enum
import os
import stat

import pytest

from tests.incident import incident
from tests.raising import raising
from wsm.signals import fastdeploy
from wsm.signals.errors import EngineWordMissingError, SegmentAccessError, SegmentNameError
from wsm.signals.fastdeploy import EngineWord, EngineWordKind, engine_word_path

# What FastDeploy's IPCSignal does with its words: multiprocessing's shared memory under a numpy array.
ENGINE = """
import numpy
from multiprocessing.shared_memory import SharedMemory

def make():
    memory = SharedMemory(name=f"model_weights_status.{sys.argv[1]}", create=True, size=4)
    array = numpy.ndarray([1], dtype=numpy.int32, buffer=memory.buf)
    array[:] = 0
    return memory, array

memory, array = make()
say("created")
while (what := heard()):
    if what == "anew":
        del array
        memory.close()
        memory.unlink()
        memory, array = make()
        say("anew")
    elif what == "read":
        say(array[0])
    else:
        array[0] = int(what)
        say("wrote")
del array
memory.close()
memory.unlink()
say("removed")
"""


@pytest.fixture
def word(name):
    with EngineWord.create(EngineWordKind.WEIGHTS, name) as word:
        yield word


@pytest.mark.processes
@pytest.mark.needs("libatomic")
def test_an_engine_and_wsm_understand_each_other(name, launch):
    assert not engine_word_path(EngineWordKind.WEIGHTS, name).exists()
    engine = launch(ENGINE, name)
    assert engine.says() == "created"
    assert engine_word_path(EngineWordKind.WEIGHTS, name).exists()
    word = EngineWord(EngineWordKind.WEIGHTS, name)
    assert word.read() == 0
    engine.tell("-1")
    engine.says()
    assert word.read() == -1
    assert word.compare_exchange(-1, -2)
    engine.tell("read")
    assert engine.says() == "-2"
    engine.tell("1")
    engine.says()
    assert not word.compare_exchange(-1, -2), "an answer to an older request must not be written"
    assert word.read() == 1

    assert not word.is_replaced()
    engine.tell("anew")
    engine.says()
    assert word.is_replaced()
    word.close()
    word = EngineWord(EngineWordKind.WEIGHTS, name)
    assert not word.is_replaced()
    assert word.read() == 0
    engine.tell("")
    assert engine.says() == "removed"
    assert word.is_replaced()
    word.close()
    assert engine.ends() == 0
    assert engine.errors() == ""


@incident("FastDeploy C2-16")
@pytest.mark.processes
def test_a_process_that_read_the_word_and_exits_does_not_take_it_with_it(word, name, launch):
    child = launch(
        """
        from wsm.signals.fastdeploy import EngineWord, EngineWordKind, engine_word_path
        say(engine_word_path(EngineWordKind.WEIGHTS, sys.argv[1]).exists())
        word = EngineWord(EngineWordKind.WEIGHTS, sys.argv[1])
        say(word.read())
        """,
        name,
    )
    assert child.says() == "True"
    assert child.says() == "0"
    assert child.ends() == 0
    assert not word.is_replaced()


@pytest.mark.processes
@pytest.mark.needs("libatomic")
def test_of_two_processes_that_exchange_at_once_one_wins_each_time(word, name, launch):
    adder = """
    from wsm.signals.fastdeploy import EngineWord, EngineWordKind
    word = EngineWord(EngineWordKind.WEIGHTS, sys.argv[1])
    say("ready")
    heard()
    for _ in range(20000):
        while not word.compare_exchange(value := word.read(), value + 1):
            pass
    say("done")
    """
    adders = [launch(adder, name) for _ in range(2)]
    for child in adders:
        child.says()
    for child in adders:
        child.tell()
    for child in adders:
        child.says()
    assert word.read() == 40000


def test_the_words_lie_where_fastdeploy_looks(tmp_path):
    names = {kind: engine_word_path(kind, 8080).name for kind in EngineWordKind}
    assert names == {
        EngineWordKind.WEIGHTS: "model_weights_status.8080",
        EngineWordKind.KV_CACHE: "kv_cache_status.8080",
        EngineWordKind.PREFIX_TREE: "prefix_tree_status.8080",
    }
    assert str(engine_word_path(EngineWordKind.WEIGHTS, 1).parent) == "/dev/shm"  # noqa: S108 - the place itself


def test_a_word_that_wsm_creates_is_as_an_engine_would_create_it(word):
    status = word.path.stat()
    assert (status.st_size, stat.S_IMODE(status.st_mode)) == (4, 0o600)
    assert word.read() == 0
    word.store(-2)
    assert word.path.read_bytes() == b"\xfe\xff\xff\xff"
    assert type(word.read()) is int


def test_a_word_is_created_with_a_value_and_removed_by_its_creator(tmp_path):
    word = EngineWord.create(EngineWordKind.KV_CACHE, 7, -1, directory=tmp_path)
    assert word.read() == -1
    assert engine_word_path(EngineWordKind.KV_CACHE, 7, tmp_path).exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["kv_cache_status.7"]
    word.unlink()
    word.unlink()
    word.close()
    word.close()
    assert not list(tmp_path.iterdir())


@incident("4.8-8")
def test_an_existing_word_is_not_replaced_as_fastdeploy_would(word, name):
    word.store(1)
    with raising("engine-word-exists", match="use another suffix"):
        EngineWord.create(EngineWordKind.WEIGHTS, name)
    assert word.read() == 1
    assert not word.is_replaced()


def test_a_word_of_a_successor_is_not_removed(tmp_path):
    with EngineWord.create(EngineWordKind.WEIGHTS, 1, directory=tmp_path) as old:
        old.unlink()
        with EngineWord.create(EngineWordKind.WEIGHTS, 1, directory=tmp_path) as new:
            old.unlink()
            assert not new.is_replaced()


def test_a_missing_word_says_which_suffix_is_meant(tmp_path):
    with pytest.raises(EngineWordMissingError, match="engine worker queue port") as caught:
        EngineWord(EngineWordKind.PREFIX_TREE, 8080, directory=tmp_path)
    assert caught.value.path == str(tmp_path / "prefix_tree_status.8080")


@pytest.mark.parametrize("size", [0, 3])
def test_a_file_too_small_for_an_int32_is_refused(tmp_path, size):
    engine_word_path(EngineWordKind.WEIGHTS, 1, tmp_path).write_bytes(bytes(size))
    with raising("engine-word-size") as caught:
        EngineWord(EngineWordKind.WEIGHTS, 1, directory=tmp_path)
    assert caught.value.size == size


def test_a_larger_word_is_attached_as_its_first_element(tmp_path):
    """Other platforms round shared memory up to a page."""
    engine_word_path(EngineWordKind.WEIGHTS, 1, tmp_path).write_bytes(b"\xff" * 4 + bytes(4092))
    with EngineWord(EngineWordKind.WEIGHTS, 1, directory=tmp_path) as word:
        assert word.read() == -1


def test_a_link_or_a_strange_suffix_is_refused(tmp_path):
    (tmp_path / "target").write_bytes(bytes(4))
    engine_word_path(EngineWordKind.WEIGHTS, 1, tmp_path).symlink_to(tmp_path / "target")
    with pytest.raises(SegmentAccessError):
        EngineWord(EngineWordKind.WEIGHTS, 1, directory=tmp_path)
    for suffix in ("", "../1", "a/b"):
        with pytest.raises(SegmentNameError):
            EngineWord(EngineWordKind.WEIGHTS, suffix, directory=tmp_path)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_a_value_that_is_no_int32_is_refused_and_never_wraps(word, value):
    for use in (
        lambda: word.store(value),
        lambda: word.compare_exchange(0, value),
        lambda: word.compare_exchange(value, 0),
    ):
        with raising("engine-word-value"):
            use()
    assert word.read() == 0


@pytest.mark.needs("libatomic")
def test_without_libatomic_a_word_can_be_read_and_the_missing_package_is_named(word, monkeypatch):
    monkeypatch.setattr(fastdeploy, "_LIBRARY", "libatomic-that-is-not-there.so.1")
    fastdeploy._compare_exchange.cache_clear()
    assert word.read() == 0
    with raising("atomics-unavailable", match="libatomic1"):
        word.compare_exchange(0, 1)
    assert word.read() == 0
    monkeypatch.undo()
    fastdeploy._compare_exchange.cache_clear()
    assert word.compare_exchange(0, 1)


def test_a_library_without_the_function_is_no_libatomic(monkeypatch):
    monkeypatch.setattr(fastdeploy, "_LIBRARY", ctypes.util.find_library("c"))
    fastdeploy._compare_exchange.cache_clear()
    with raising("atomics-unavailable"):
        fastdeploy.compare_exchange_32(0, 0, 0)
    monkeypatch.undo()
    fastdeploy._compare_exchange.cache_clear()


def test_a_closed_word_raises_and_touches_no_memory(tmp_path):
    word = EngineWord.create(EngineWordKind.WEIGHTS, os.getpid(), directory=tmp_path)
    word.close()
    for use in (word.read, lambda: word.store(1), lambda: word.compare_exchange(0, 1)):
        with pytest.raises(ValueError, match="released"):
            use()


@pytest.mark.needs("libatomic")
def test_an_enumeration_member_is_stored_and_exchanged_like_the_number_that_it_is(word):
    class Code(enum.IntEnum):
        CLEARING = -1
        CLEARED = -2

    word.store(Code.CLEARING)
    assert word.compare_exchange(Code.CLEARING, Code.CLEARED)
    assert word.read() == -2
