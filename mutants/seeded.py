"""Faults of a few words, each a mistake that somebody could make, and which lived once with all tests green.

Each has the test that finds it. A bug that all tests let live becomes one more.
"""

from __future__ import annotations

from typing import NamedTuple


class Seeded(NamedTuple):
    """One fault.

    Attributes
    ----------
    name : str
        What is wrong then, as a sentence.
    module : str
        The file, below ``src/wsm/``.
    was, becomes : str
        Text that stands there once, and what stands in its place.
    test : str
        What finds it; empty where nothing can.
    proof : str
        Why nothing can.
    """

    name: str
    module: str
    was: str
    becomes: str
    test: str
    proof: str = ""


SEEDED = (
    Seeded(
        "a release of a group that is not held is accepted without standing",
        "states/phases.py",
        "OutcomeRow(_P.BEGINNING, _E.BEGAN, (_W.RELEASES, _W.HELD), _P.WORKING",
        "OutcomeRow(_P.BEGINNING, _E.BEGAN, (_W.RELEASES,), _P.WORKING",
        "tests/states/test_phase_check.py::test_the_tables_are_sound",
    ),
    Seeded(
        "a rank that has stopped, and had accepted, may join a step",
        "states/phases.py",
        "LookRow(_P.STOPPED, (_W.NOT_ACCEPTED, _W.BEHIND), _T.JOIN)",
        "LookRow(_P.STOPPED, (_W.BEHIND,), _T.JOIN)",
        test="",
        proof="it accepted where all stood at one step; a peer leaves that one only when it has finished the "
        "command, and who has finished is not behind anybody (view.is_behind)",
    ),
    Seeded(
        "with one half asleep a clear of both needs no work",
        "states/decide.py",
        "not owed and tags <= held.missing",
        "not owed and bool(tags & held.missing)",
        "tests/tags/test_every_half.py::test_a_command_moves_what_it_names_and_is_not_there_and_nothing_else",
    ),
    Seeded(
        "a caller's lease that ran out aborts nothing",
        "states/group.py",
        "GroupRow(_S.UNDECIDED, (_W.PREPARED, _W.GIVEN_UP), _T.LOOK, _R.ABORT)",
        "GroupRow(_S.UNDECIDED, (_W.PREPARED, _W.GIVEN_UP, _W.EXPIRED), _T.LOOK, _R.ABORT)",
        "tests/states/test_group.py::test_a_lease_holds_a_decision_without_a_process",
    ),
    Seeded(
        "the tables are asked, and the machine is moved to where they lead",
        "states/machine.py",
        "return bool(self._machine.events[event.value].trigger(self.model, facts=facts))",
        "row = self.chart.find(self.model.state, event, kept=facts.kept)\n"
        "            if row is None or joint.objection(facts.joint, row) is not None:\n"
        "                return False\n"
        "            self.model.state = row.dest\n"
        "            return True",
        "tests/worker/test_machine_decides.py::"
        "test_a_command_that_needs_an_edge_is_refused_by_a_machine_that_lacks_it",
    ),
    Seeded(
        "staging is not stopped when the epoch ends",
        "worker/_loop.py",
        "                self.run.stop_staging(wait_s=_LEAVE_S)\n            self._leaving =",
        "                pass\n            self._leaving =",
        "tests/worker/test_hot_update.py::test_a_new_epoch_stops_the_staging_of_the_old_one",
    ),
    Seeded(
        "the pause of every command is counted from where the first one took the rank from service",
        "worker/_loop.py",
        "move.step.kind is StepKind.PARKED and self.life.serving:",
        "move.step.kind is StepKind.PARKED and self.life.serving and self._paused_since_ns is None:",
        "tests/worker/test_reports.py::test_the_pause_of_each_command_begins_when_its_rank_serves_no_more",
    ),
    Seeded(
        "the arguments of all commands lie in one slot",
        "signals/segment.py",
        "return self._arguments[sequence % len(self._arguments)]",
        "return self._arguments[0]",
        "tests/signals/test_slot.py::test_arguments_of_consecutive_commands_do_not_overwrite_each_other",
    ),
    Seeded(
        "the key of a slot is not in its checksum",
        "signals/layout.py",
        "return zlib.crc32(data, zlib.crc32(_KEY.pack(epoch, sequence, kind, len(data))))",
        "return zlib.crc32(data, zlib.crc32(_KEY.pack(0, 0, 0, len(data))))",
        "tests/signals/test_slot.py::test_a_head_that_is_torn_between_two_keys_gives_nobodys_payload",
    ),
    Seeded(
        "a reader keeps lines that were overwritten while it copied",
        "journal/entry.py",
        "return kept[overtaken:]",
        "return kept",
        "tests/signals/test_ring.py::"
        "test_a_reader_drops_the_lines_that_were_overwritten_while_it_copied_them",
    ),
    Seeded(
        "a report names the version that was asked for where the source proved none",
        "strategies/load.py",
        "version=offer.version,\n        manifest_digest=offer.manifest_digest or applied.digest",
        "version=offer.version or wanted,\n        manifest_digest=offer.manifest_digest or applied.digest",
        "tests/strategies/test_load.py::"
        "test_a_report_names_the_version_that_the_source_proves_and_not_the_one_that_was_asked_for",
    ),
    Seeded(
        "a cancel behind the last tensor says that nothing was touched",
        "strategies/load.py",
        "with stamping(once):\n            raise",
        "with stamping(Taint()):\n            raise",
        "tests/strategies/test_load.py::"
        "test_a_load_that_is_cancelled_behind_its_last_tensor_says_that_the_weights_were_touched",
    ),
    Seeded(
        "a partial update forgets the load options of its base",
        "controller/group_view.py",
        "load = {**group.committed(view).load, **load}",
        "load = {**load}",
        "tests/controller/test_transaction.py::"
        "test_a_partial_update_is_restored_by_the_load_options_of_the_version_that_it_was_put_on",
    ),
    Seeded(
        "a command of another epoch with the same sequence is taken for one's own",
        "controller/_transaction.py",
        "        if view.command[:2] != self._command[:2]:",
        "        if view.command.sequence != self._command.sequence:",
        "tests/controller/test_transaction.py::"
        "test_a_command_of_another_epoch_is_not_taken_for_ones_own_by_its_sequence",
    ),
    Seeded(
        "the rank that died last is always blamed",
        "controller/_transaction.py",
        "to_blame = lost if first.lost or (set(lost) - set(broken) and not first.expired) else ()",
        "to_blame = lost",
        "tests/controller/test_transaction.py::test_a_rank_that_dies_behind_a_deadline_is_not_to_blame_for_it",
    ),
    Seeded(
        "words that are seen before their reports are decided at once",
        "controller/_drive.py",
        "        return None if prepared is None else not outcome.disagreement(prepared)\n",
        "        return prepared is not None and not outcome.disagreement(prepared)\n",
        "tests/controller/test_transaction.py::"
        "test_words_that_come_before_their_reports_are_looked_at_once_more",
    ),
    Seeded(
        "a commit that is said after the lease is accepted",
        "states/group.py",
        "known.verdict is True and not known.lease_over",
        "known.verdict is True",
        "tests/controller/test_prepared.py::"
        "test_a_commit_that_is_said_after_the_lease_is_over_comes_too_late",
    ),
    Seeded(
        "a replica of a fleet lets text reach whatever it holds",
        "http/app.py",
        "    commands.require_allowed()\n",
        "",
        "tests/fleet/test_replica_decides.py::"
        "test_what_is_held_and_not_allowed_takes_no_text_until_the_fleet_is_brought_to_it",
    ),
    Seeded(
        "a replica of a fleet commits whatever stands prepared",
        "http/commands.py",
        'self.fleet.require_own(receipt.get("version"), receipt.get("manifest_digest") or "")',
        "pass",
        "tests/fleet/test_replica_decides.py::test_a_late_commit_of_what_is_allowed_no_longer_is_refused",
    ),
    Seeded(
        "an update of a replica of a fleet is committed though its generation has passed while it loaded",
        "http/commands.py",
        'self.fleet.require_own(prepared.receipt.version, prepared.receipt.manifest_digest or "")',
        "pass",
        "tests/fleet/test_replica_decides.py::"
        "test_an_update_whose_generation_passes_while_it_loads_is_not_committed",
    ),
    Seeded(
        "a fleet of which one cannot be held leaves the others held",
        "fleet/serving.py",
        "                await self._ask_all(undo)\n",
        "",
        "tests/fleet/test_serving.py::"
        "test_a_pause_holds_all_or_none_and_a_dead_replica_counts_once_it_is_not_routable",
    ),
    Seeded(
        "a fleet holds what is dead though text may still be sent there",
        "fleet/serving.py",
        'code != "upstream-unreachable" or url in routable',
        'code != "upstream-unreachable"',
        "tests/fleet/test_serving.py::"
        "test_a_pause_holds_all_or_none_and_a_dead_replica_counts_once_it_is_not_routable",
    ),
    Seeded(
        "what a fleet holds stays held behind the death of its server",
        "fleet/serving.py",
        '"on_lease": OnLease.SERVE',
        '"on_lease": OnLease.STAY',
        "tests/fleet/test_serving.py::"
        "test_a_hold_lasts_while_its_server_lives_and_is_over_soon_after_its_death",
    ),
    Seeded(
        "a store that shows no target any more takes back the one that is known",
        "states/fleet.py",
        "return known is None or (found is not None and found.generation >= known.generation)",
        "return True",
        "tests/fleet/test_replica_decides.py::"
        "test_a_store_that_cannot_be_read_stops_no_replica_that_serves_what_is_allowed",
    ),
)
