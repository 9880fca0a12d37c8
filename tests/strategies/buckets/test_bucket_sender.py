"""The trainer's side of buckets: all ranks at once, and one answer when one fails, dies, or is silent."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from bucket_ranks import BUCKET, PROGRAM, WINDOW, digest_of_shard, receive, send_to_both, shard, shards
from receiving_rank import SPECS

from tests.forkserver import WITHOUT_PADDLE
from tests.raising import matches, raising
from wsm.clock import ManualClock
from wsm.errors import WsmError
from wsm.shared_directory import private_directory
from wsm.strategies import BucketSender, IpcAsyncSource, MemoryTarget, TensorSpec, errors, load
from wsm.strategies import peer_errors as stream_errors
from wsm.strategies.buckets import channel, wire
from wsm.strategies.buckets.channel import RankSocket, TrainerSocket
from wsm.strategies.buckets.sender import RankStream, Stage
from wsm.strategies.conversation import Abort, frame_of
from wsm.strategies.digest import digest_of
from wsm.strategies.ipc.shared_segment import AttachedSegment, OwnedSegment
from wsm.strategies.tensor import BEGIN_IN_PAGE
from wsm.typed import bad_keyword


@pytest.fixture(params=["ipc", "tcp"])
def sender(request, tmp_path):
    address = "tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{tmp_path}/buckets"
    with BucketSender(address, bucket_bytes=BUCKET, window_bytes=WINDOW) as made:
        yield made


def asking(address):
    """Be a rank that says what a test wants."""
    made = RankSocket(address)
    assert made.look()
    return made


def answer_to(rank):
    frame = rank.receive(60)
    assert frame is not None
    return wire.from_trainer(frame, "the sender")


def test_two_ranks_receive_a_version_at_once_and_everybody_agrees_on_it(sender, threads):
    for version in (1, 2, 3):
        loads = [threads.submit(receive, sender, rank, version) for rank in range(2)]
        sent = sender.send(version, shards(version))
        for rank, pending in enumerate(loads):
            report, held = pending.result()
            assert held == {name: data for name, (_, data) in shard(version, rank).items()}
            assert report.digest == sent.digests[rank] == digest_of_shard(version, rank)
            assert report.manifest_digest == sent.manifest_digest
            assert report.peak_extra_bytes == BEGIN_IN_PAGE + WINDOW
        assert sent.bytes == 2 * sum(spec.nbytes for spec in SPECS)


def test_a_rank_that_asks_for_the_next_version_early_gets_it(over_ipc, threads):
    asked = threading.Event()

    def both_versions():
        first = receive(over_ipc, 0, 1)[0]
        asked.set()
        return first, receive(over_ipc, 0, 2)[0]

    early = threads.submit(both_versions)

    def late():
        asked.wait(60)  # rank 0 has version 1, and asks for version 2 while rank 1 still receives
        return receive(over_ipc, 1, 1)[0], receive(over_ipc, 1, 2)[0]

    other = threads.submit(late)
    sent = [over_ipc.send(version, shards(version)) for version in (1, 2)]
    for rank, pending in enumerate((early, other)):
        assert [report.digest for report in pending.result()] == [each.digests[rank] for each in sent]


def test_the_memory_of_buckets_is_used_again_and_goes_with_the_sender(tmp_path, threads):
    def names():
        mapped = Path("/proc/self/maps").read_text()  # others on this host may stream at the same time
        return {path.name for path in private_directory().glob("wsm-buckets.*") if path.name in mapped}

    with BucketSender(f"ipc://{tmp_path}/buckets", bucket_bytes=BUCKET, window_bytes=WINDOW) as sender:
        seen = []
        for version in (1, 2, 3):
            send_to_both(sender, threads, version)
            seen.append(names())
        assert len(seen[0]) == 2
        assert seen[0] == seen[1] == seen[2]
    assert not any((private_directory() / name).exists() for name in seen[0])
    assert list(tmp_path.iterdir()) == []


def test_a_sender_sends_one_version_at_a_time_and_closing_it_ends_what_is_sent(over_ipc, threads):
    refused = []

    def close_it(done, total):
        with raising("sender-busy", match="sending version 1 and cannot close"):
            over_ipc.close()
        refused.append(done)

    reached = threading.Event()
    rank = threads.submit(receive, over_ipc, 0, 1, progress=lambda done, total: reached.set())
    sending = threads.submit(over_ipc.send, 1, shards(1), progress=close_it)
    assert reached.wait(60)
    with raising("sender-busy", match="sending version 1 and cannot send version 2"):
        over_ipc.send(2, shards(2))
    over_ipc.close()
    with raising(stream_errors.send_cancelled):
        sending.result()
    with contextlib.suppress(WsmError):  # it may have had all it needs
        rank.result()
    assert refused
    with raising("sender-closed", match="cannot send version 3"):
        over_ipc.send(3, shards(3))


def test_a_command_that_fails_ends_the_sending(over_ipc):
    with pytest.raises(KeyError), over_ipc.sending(4, shards(4)):
        raise KeyError("the update was refused")


#: What a trainer can hand in that no rank gets: each fails before a rank is talked to.
EARLY = {
    "a tensor of another byte order": ({0: {"w": np.ones(4, ">f4")}, 1: shard(4, 1)}, {}),
    "an infinite number": (
        {rank: {"w": np.full(4, np.inf, np.float32)} for rank in (0, 1)},
        {"finite": True},
    ),
    "a rank that is missing": ({1: shard(4, 1)}, {}),
    "nothing": ({}, {}),
}


@pytest.mark.parametrize("what", EARLY)
def test_what_fails_in_the_trainer_before_it_talks_is_told_to_the_ranks_and_is_the_cause(over_ipc, what):
    handed_in, options = EARLY[what]
    with (
        pytest.raises(stream_errors.PeerFailedError) as told,
        over_ipc.sending(4, handed_in, **options) as sending,
    ):
        receive(over_ipc, 0, 4)
    cause = told.value.__cause__
    assert isinstance(cause, WsmError)
    assert not isinstance(cause, stream_errors.PeerFailedError)
    assert told.value.context["reason"] == str(cause)
    assert not told.value.context["touched"]
    with pytest.raises(RuntimeError, match="raised before"):
        sending.result()


@pytest.mark.slow
def test_a_rank_that_asks_for_another_version_than_the_one_that_failed_is_told_so(over_ipc, threads):
    with (
        pytest.raises(errors.VersionMismatchError, match="version 5 was asked for"),
        over_ipc.sending(4, {}),
    ):
        receive(over_ipc, 0, 5)
    send_to_both(over_ipc, threads, 4)


def test_a_sender_that_is_closed_meanwhile_refuses_no_more(over_ipc):
    with pytest.raises(WsmError) as caught, over_ipc.sending(4, {}):
        over_ipc.close()
    # Its thread looks at the shards before it is closed, or finds it closed.
    assert caught.value.code in ("incomplete-publication", "sender-closed")


def test_a_rank_that_fails_is_named_with_its_own_error_and_the_other_is_told(over_ipc, threads):
    other_has_begun, told_apart = threading.Event(), threading.Event()

    class Broken(MemoryTarget):
        def writable(self, name):
            other_has_begun.wait(60)
            raise OSError("no memory today")

    def hold(done, total):
        other_has_begun.set()
        told_apart.wait(60)

    good = threads.submit(receive, over_ipc, 0, 1, progress=hold)
    bad = threads.submit(receive, over_ipc, 1, 1, target=Broken(SPECS))
    with raising(stream_errors.PeerFailedError) as caught:
        over_ipc.send(1, shards(1))
    assert (caught.value.peer, caught.value.error) == ("rank 1", "OSError")
    assert "no memory today" in str(caught.value)
    told_apart.set()
    with raising(stream_errors.PeerFailedError, match="gave up") as told:
        good.result()
    assert told.value.error == "peer-failed"
    assert "rank 1" in str(told.value)
    assert told.value.touched
    with pytest.raises(OSError, match="no memory today"):
        bad.result()
    send_to_both(over_ipc, threads, 2)


@pytest.mark.processes
def test_a_rank_that_died_before_it_began_may_be_replaced(over_ipc, launch, threads):
    process = launch(0, 1, "begun")
    assert process.stdout.readline() == b"begun\n"
    process.kill()
    process.wait()
    with contextlib.closing(asking(over_ipc.address)) as gone:  # it asks, and goes away
        gone.send(frame_of(wire.Hello(0, 2, "1", look=False)))
    send_to_both(over_ipc, threads, 1)


def test_a_rank_that_never_comes_is_named_at_the_deadline(over_ipc, threads):
    first = threads.submit(receive, over_ipc, 0, 1)
    with raising(stream_errors.PeerSilentError, match="rank 1 said nothing") as caught:
        over_ipc.send(1, shards(1), join_s=0.5)
    assert caught.value.expected == "its Hello"
    with contextlib.suppress(stream_errors.PeerFailedError):  # it may have had all it needs
        first.result()


def test_what_is_no_message_reaches_no_stream(over_ipc, threads):
    nobody = frame_of(wire.Hello(7, 2, None, look=False))
    garbage = (b"", b"hello", frame_of(wire.Ack(0)), frame_of(wire.Done(0, "0" * 32)), nobody)
    with contextlib.ExitStack() as stack:
        for data in garbage:
            stranger = stack.enter_context(contextlib.closing(asking(over_ipc.address)))
            stranger.send(data)
        send_to_both(over_ipc, threads, 1)
        answer = answer_to(stranger)
        assert (answer.reason, answer.text) == ("rank", "versions are offered for ranks 0 to 1")


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_an_address_has_one_sender(tmp_path, scheme):
    first = BucketSender("tcp://127.0.0.1:*" if scheme == "tcp" else f"ipc://{tmp_path}/buckets")
    with first, raising("address-busy", match=scheme):
        BucketSender(first.address)
    with BucketSender(first.address):
        pass


@pytest.mark.parametrize(
    "address",
    [
        "ipc://relative/path",
        "ipc:///" + "x" * 200,
        "tcp://0.0.0.0:5555",
        "tcp://192.0.2.1:5555",
        "tcp://localhost",
        "inproc://here",
        "",
        "/run/buckets",
    ],
)
def test_an_address_that_is_not_of_this_host_is_refused_on_both_sides(address):
    with raising("bad-address"):
        BucketSender(address)
    with raising("bad-address"):
        load(IpcAsyncSource(address), MemoryTarget(SPECS), name="ipc_async")


def test_a_socket_in_a_directory_that_does_not_exist_is_an_error(tmp_path):
    with raising("address-busy", match="No such file"):
        BucketSender(f"ipc://{tmp_path}/nowhere/buckets")


@pytest.mark.parametrize(
    "options",
    [{"bucket_bytes": 100}, {"bucket_bytes": 0}, {"window_bytes": 0}, {"window_bytes": 100}],
    ids=str,
)
def test_buckets_that_cannot_be_are_refused(options):
    with raising(("bad-bucket-size", bad_keyword)):
        BucketSender("tcp://127.0.0.1:*", **options)


def test_a_shard_without_tensors_is_refused(over_ipc):
    with raising(errors.trainer_tensor, match="rank 0"):
        over_ipc.send(1, {0: {}})


def test_tensors_that_no_message_can_name_are_refused_and_the_rank_is_told(over_ipc, threads, monkeypatch):
    monkeypatch.setattr(wire, "MOST_TO_RANK", 4000)
    many = {str(number): (TensorSpec(str(number), "U8", (1,)), b"x") for number in range(400)}
    pending = threads.submit(receive, over_ipc, 0, 1)
    with raising(errors.trainer_tensor, match="too many"):
        over_ipc.send(1, {0: many, 1: many})
    with raising(stream_errors.PeerFailedError, match="too many"):
        pending.result()


def test_a_rank_that_may_open_no_more_files_says_so(over_ipc, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for name in ("open_ours", "_new_context"):
        with monkeypatch.context() as patched:
            patched.setattr(channel, name, refuse)
            with raising("cannot-connect", match="Too many open files.*ulimit"):
                receive(over_ipc, 0, 1)


def test_an_address_is_taken_as_it_is_whatever_its_directory_is_called(tmp_path):
    (tmp_path / "localhost").mkdir(0o700)
    address = f"ipc://{tmp_path}/localhost/buckets"
    with BucketSender(address) as sender, sender.sending(1, {0: shard(1, 0)}):
        assert load(IpcAsyncSource(address), MemoryTarget(SPECS), name="ipc_async").version == "1"


@pytest.fixture
def stream():
    segment = OwnedSegment("wsm-test.", BEGIN_IN_PAGE + 128)
    tensors = {"t": (TensorSpec("t", "U8", (300,)), bytes(range(150)) * 2)}
    yield RankStream(tensors, segment, wire.Init("1", 0, 1, "p", segment.name, 64, 2, finite=False))
    segment.close()


def begin(stream):
    """Be the rank: have a lease on the memory, then be ready."""
    stream.stage = Stage.OFFERED
    prefixes = ("wsm-test.",)
    lease = AttachedSegment(stream.segment.name, stream.segment.nbytes, prefixes=prefixes, referrer="a test")
    with contextlib.closing(lease):
        assert stream.begin()


def test_no_more_is_written_than_may_be_in_flight(stream):
    begin(stream)
    assert [stream.write().number for _ in range(2)] == [0, 1]
    assert stream.write() is None
    stream.hear(wire.Ack(0))
    assert stream.write().number == 2
    assert stream.write() is None


def test_memory_that_is_cut_short_is_an_error_of_the_trainer(stream):
    begin(stream)
    os.truncate(f"{private_directory()}/{stream.segment.name}", 100)
    with raising(errors.bad_file_size, match="truncated"):
        stream.write()


@pytest.mark.parametrize(
    "wrong",
    [wire.Ack(1), wire.Ack(2), wire.Done(1, digest_of(b"")), wire.Ready(), wire.Hello(0, 1, "1", look=False)],
    ids=lambda message: str(message)[:20],
)
def test_what_is_not_due_is_an_error_of_that_rank(stream, wrong):
    begin(stream)
    stream.write()
    with raising(stream_errors.peer_message, match="rank 0 sent"):
        stream.hear(wrong)


def test_a_rank_is_who_has_the_memory_and_a_second_one_comes_too_late(stream):
    assert not stream.begin()
    stream.stage = Stage.OFFERED
    assert not stream.begin()  # without a lease
    begin(stream)
    assert not stream.begin()


_DYING_SENDER = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from receiving_rank import SPECS
from wsm.strategies import BucketSender
def die(done, total):
    if done > 1 << 20:
        print(*(sender._segments[rank].name for rank in (0, 1)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
shard = {spec.name: (spec, bytes(spec.nbytes)) for spec in SPECS}
options = {"bucket_bytes": 1 << 18, "window_bytes": 1 << 19, "memory_directory": sys.argv[3]}
with BucketSender(sys.argv[1], **options) as sender:
    print("listening", flush=True)
    sender.send(1, {0: shard, 1: shard}, progress=die)
"""


@pytest.mark.processes
def test_a_rank_removes_the_buckets_of_a_killed_sender_and_the_next_sender_those_of_other_ranks(tmp_path):
    address = f"ipc://{tmp_path}/buckets"
    memory = tmp_path / "memory"  # nobody else's senders sweep there
    memory.mkdir()
    command = ("-c", _DYING_SENDER, address, PROGRAM.parent, memory)
    with WITHOUT_PADDLE.start(*command, stderr=None, text=True) as process:
        assert process.stdout.readline() == "listening\n"
        source = IpcAsyncSource(address, 0, world_size=2, silence_s=600, memory_directory=str(memory))
        with raising(stream_errors.PeerDiedError, match="has ended") as caught:
            load(source, MemoryTarget(SPECS), name="ipc_async", version=1)
        assert caught.value.touched
        own, others = process.stdout.readline().split()
    assert not (memory / own).exists()
    assert (memory / others).exists()  # that rank never came
    with BucketSender(f"ipc://{tmp_path}/next", memory_directory=str(memory)):
        assert not (memory / others).exists()


# -- sides that take their time --------------------------------------------------------------------------


# Many more buckets than ZMQ holds, or may be in flight.
BUCKETS = 8000
SMALL = TensorSpec("a", "U8", (64 * BUCKETS,))


@pytest.fixture
def address(tmp_path):
    return f"ipc://{tmp_path}/buckets"


@pytest.mark.slow
@pytest.mark.parametrize("standing_still", ["trainer", "rank"])
def test_no_word_about_many_small_buckets_is_lost_while_one_side_stands_still(
    address, threads, standing_still
):
    other_is_through = threading.Event()
    seen = [0]

    def on_trainer(done, total):
        if done == total and standing_still == "trainer":
            before = -1
            while (
                seen[0] > before and not other_is_through.is_set()
            ):  # what a full socket holds back is not lost
                before = seen[0]
                other_is_through.wait(0.5)

    def on_rank(done, total):
        if standing_still == "rank" and not seen[0]:
            other_is_through.wait(0.5)
        seen[0] = done
        if standing_still == "rank":
            return
        if done > total - 256:
            other_is_through.set()

    content = bytes(range(256)) * (SMALL.nbytes // 256)
    target = MemoryTarget([SMALL])
    with BucketSender(address, bucket_bytes=64, window_bytes=SMALL.nbytes) as sender:
        pending = threads.submit(load, IpcAsyncSource(address), target, name="ipc_async", progress=on_rank)
        sent = sender.send(1, {0: {"a": (SMALL, content)}}, progress=on_trainer, silence_s=60)
    assert pending.result().digest == sent.digests[0]
    assert bytes(target.readable("a")) == content


def test_a_trainer_whose_tensors_come_slowly_does_not_call_a_rank_silent_for_that(address, threads):
    clock = ManualClock()

    class FromDevice(dict):
        """Each look at a tensor takes an hour."""

        def __getitem__(self, name):
            clock.advance(3600.0)
            return super().__getitem__(name)

    tensors = FromDevice({name: np.full(100, number, np.uint8) for number, name in enumerate("abcd")})
    target = MemoryTarget(TensorSpec(name, "U8", (100,)) for name in tensors)
    with BucketSender(address, bucket_bytes=128, window_bytes=128, clock=clock) as sender:
        pending = threads.submit(load, IpcAsyncSource(address), target, name="ipc_async")
        sent = sender.send(1, {0: tensors}, join_s=1e9, silence_s=10)
    assert pending.result().digest == sent.digests[0]


# -- a peer that lies about the memory of its stream -----------------------------------------------------


SPEC = TensorSpec("a", "U8", (3,))
NBYTES = BEGIN_IN_PAGE + 128


@pytest.fixture
def load_from_liar(tmp_path, threads):
    """Load from a peer that names the memory `name` in its Init; the rank's error."""

    def lie(name: str) -> Exception:
        with contextlib.closing(TrainerSocket(f"ipc://{tmp_path}/liar")) as liar:
            pending = threads.submit(
                load, IpcAsyncSource(f"ipc://{tmp_path}/liar"), MemoryTarget([SPEC]), name="ipc_async"
            )
            rank, _ = liar.receive(60)
            offer = wire.Init("1", 0, 1, "p", name, 64, 2, False, (("a", "U8", (3,)),))
            liar.send(rank, frame_of(offer))
            liar.receive(0.5)  # a rank that believes it says Ready, and is told that this was all
            liar.send(rank, frame_of(Abort("failed", "Liar", "goodbye")))
            return pending.exception(60)

    return lie


def test_a_file_that_is_called_like_the_memory_of_a_stream_is_not_taken_for_one(load_from_liar):
    called = private_directory() / f"{wire.SEGMENT_PREFIX}{secrets.token_hex(8)}"
    called.write_bytes(bytes(NBYTES))
    try:
        error = load_from_liar(called.name)
        assert matches(error, "foreign-segment")
        assert "it was not made for this stream" in str(error)
        assert called.exists()
    finally:
        called.unlink()


def test_the_memory_of_another_stream_is_neither_written_nor_removed(load_from_liar):
    with contextlib.closing(OwnedSegment(wire.SEGMENT_PREFIX, NBYTES)) as other:
        assert matches(load_from_liar(other.name), "foreign-segment")
        assert (private_directory() / other.name).exists()
        assert bytes(other.memory) == bytes(other.nbytes)
        assert not other.leased()


# -- ranks that are slower than others, or come back to life ---------------------------------------------


@pytest.mark.processes
def test_a_rank_that_stands_still_keeps_no_other_from_its_version(over_ipc, launch):
    slow, fast = launch(0, 1, "applying"), launch(1, 1, "nowhere")
    with over_ipc.sending(1, shards(1), silence_s=600) as sending:
        assert slow.stdout.readline() == b"applying\n"
        assert fast.wait() == 0
        assert slow.poll() is None
        slow.communicate(b"\n" * 1000)
    assert slow.returncode == 0
    assert sending.result().digests == {rank: digest_of_shard(1, rank) for rank in range(2)}


@pytest.mark.slow
@pytest.mark.processes
def test_the_window_of_a_rank_that_was_killed_in_the_middle_serves_the_next_version(
    over_ipc, launch, threads
):
    process = launch(0, 1, "applying")

    def kill_it(done, total):
        if done > BUCKET and process.poll() is None:
            assert process.stdout.readline() == b"applying\n"
            process.kill()
            process.wait()

    with pytest.raises(stream_errors.PeerDiedError, match="rank 0 has ended"):
        over_ipc.send(1, shards(1), progress=kill_it, silence_s=600)
    window = over_ipc._segments[0].name
    send_to_both(over_ipc, threads, 2)
    assert over_ipc._segments[0].name == window


@pytest.mark.processes
def test_a_rank_that_comes_back_to_life_in_the_next_version_harms_nobody(over_ipc, launch, threads):
    process = launch(0, 1, "applying")

    stopped = []

    def stop_it(done, total):
        if done > BUCKET and not stopped:
            stopped.append(process.pid)
            assert process.stdout.readline() == b"applying\n"
            os.kill(process.pid, signal.SIGSTOP)

    with pytest.raises(stream_errors.PeerSilentError, match="rank 0 said nothing") as caught:
        over_ipc.send(1, shards(1), progress=stop_it, silence_s=0.2)
    assert caught.value.expected == "an acknowledgement"
    window = over_ipc._segments[0].name

    def wake_it(done, total):
        if process.stdin.closed:
            return
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.close()  # it need not be told to go on any more
        assert process.wait() != 0

    send_to_both(over_ipc, threads, 2, progress=wake_it)
    assert over_ipc._segments[0].name != window
