"""Ranks that are slower than others, or come back to life when another has their place: real processes."""

from __future__ import annotations

import os
import signal

import pytest
from bucket_ranks import BUCKET, digest_of_shard, send_to_both, shards

from wsm.strategies.peer_errors import PeerDiedError, PeerSilentError

pytestmark = pytest.mark.processes


def digests(version):
    return {rank: digest_of_shard(version, rank) for rank in range(2)}


def test_a_rank_that_stands_still_keeps_no_other_from_its_version(over_ipc, launch):
    slow, fast = launch(0, 1, "applying"), launch(1, 1, "nowhere")
    with over_ipc.sending(1, shards(1), silence_s=600) as sending:
        assert slow.stdout.readline() == b"applying\n"
        assert fast.wait() == 0
        assert slow.poll() is None
        slow.communicate(b"\n" * 1000)
    assert slow.returncode == 0
    assert sending.result().digests == digests(1)


def test_the_window_of_a_rank_that_was_killed_in_the_middle_serves_the_next_version(
    over_ipc, launch, threads
):
    process = launch(0, 1, "applying")

    def kill_it(done, total):
        if done > BUCKET and process.poll() is None:
            assert process.stdout.readline() == b"applying\n"
            process.kill()
            process.wait()

    with pytest.raises(PeerDiedError, match="rank 0 has ended"):
        over_ipc.send(1, shards(1), progress=kill_it, silence_s=600)
    window = over_ipc._segments[0].name
    send_to_both(over_ipc, threads, 2)
    assert over_ipc._segments[0].name == window


def test_a_rank_that_comes_back_to_life_in_the_next_version_harms_nobody(over_ipc, launch, threads):
    process = launch(0, 1, "applying")

    stopped = []

    def stop_it(done, total):
        if done > BUCKET and not stopped:
            stopped.append(process.pid)
            assert process.stdout.readline() == b"applying\n"
            os.kill(process.pid, signal.SIGSTOP)

    with pytest.raises(PeerSilentError, match="rank 0 said nothing") as caught:
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
