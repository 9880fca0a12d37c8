"""What is promised of held groups, sentence by sentence, and which seeded faults show that it is tested."""

from __future__ import annotations

from pathlib import Path

from seeded_faults import FAULTS

from models.catalogue import MUTANTS

TESTS = Path(__file__).parent.parent

#: Sentence: seeded faults of the explorer, and of ``recovery.pml`` (in capitals); tests on processes where
#: a sentence speaks of what neither has: FastDeploy's words, turns of several callers.
SENTENCES: dict[str, tuple[str, ...]] = {
    "admission says whether a rank may step": ("a_held_rank_steps",),
    "for every other rule a held rank counts as what it has in memory": ("a_held_group_counts_as_cleared",),
    "a hold parks all ranks at one step": ("nobody_needs_to_stand", "no_dummy"),
    "a release finds all standing, and no other command does": (
        "a_hold_finds_all_standing",
        "HELD_RANK_STEPS",
    ),
    "a hold keeps all memory, also one that fails": ("a_hold_gives_memory_back",),
    "it is decided like an update: COMMIT once all are PREPARED": ("prepared_by_one_is_enough",),
    "it is legal whatever the group has in memory": ("a_hold_needs_what_serves",),
    "only a COMMIT changes admission": ("a_hold_that_fails_holds",),
    "no step begins between the receipt of a hold and the word of its release": (
        "a_held_rank_steps",
        "controller/test_holding.py::test_a_held_group_stands_with_its_memory_and_goes_on_after_the_release",
    ),
    "a hold that fails leaves the cache as it was": ("blocks_are_forgotten_before_the_decision",),
    "no plan of another command resumes admission": ("an_update_ends_a_hold",),
    "nor does an undo": ("an_abort_opens_a_held_group", "UNDO_OPENS"),
    "clear and update stay under a hold": ("an_update_ends_a_hold",),
    "what `after=` says is what every reader finds": ("an_update_that_holds_is_written_as_open",),
    "a release where the group could not serve is refused, and leaves the hold": (
        "what_cannot_serve_is_released",
    ),
    "a command treats requests as the hold said, unless it says otherwise": (
        "the_usual_policy_counts_under_a_hold",
    ),
    "DRAIN is refused while a hold keeps any": ("what_stands_is_drained",),
    "blocks are forgotten once all stand, behind the decision": ("blocks_are_forgotten_before_the_decision",),
    "one hold at a time: its owner renews it, and no other": ("another_renews_a_hold",),
    "its owner releases it, and no other": ("another_releases_a_hold",),
    "an operator may force a release": ("an_operator_is_refused",),
    "nine holds in a row and five at once succeed": (
        "controller/test_holding.py::test_nine_holds_in_a_row_and_five_at_once_succeed",
    ),
    "a command that names a hold is refused when it is no longer in force": (
        "a_hold_that_ended_is_in_force",
    ),
    "a lease that ran out ends by a release": ("a_lease_that_ran_out_is_left_alone",),
    "after any open command": ("next_early",),
    "after the lease was read again with the role": (
        "a_lease_is_not_read_again",
        "LEASE_IS_NOT_READ_AGAIN",
    ),
    "only of a group that is whole": ("a_lease_serves_whatever_is_there", "LEASE_SERVES_ANYTHING"),
    "and not where the hold is to stay": ("a_lease_that_is_to_stay_serves",),
    "HELD stands in the committed word, and whose hold it is in the record": (
        "a_new_epoch_forgets_whose_hold_it_is",
        "an_epoch_loses_a_hold",
        "the_goal_of_a_held_group_is_open",
        "EPOCH_LOSES_HOLD",
    ),
    "a new epoch begins held": ("a_new_epoch_begins_open", "EPOCH_BEGINS_OPEN"),
    "its restore loads under the hold": ("RESTORE_OPENS",),
    "hold and release change no version": ("a_hold_is_restored", "HOLD_IS_RESTORED"),
    "they take no debt away": ("a_hold_takes_the_debt_away", "HOLD_TAKES_DEBT"),
    "whatever becomes of their arguments": (
        "a_decision_leaves_the_debt_to_the_arguments",
        "controller/test_groups_that_wait_to_be_restored.py::test_no_debt_is_lost_where_arguments_are_damaged",
    ),
    "a successor aborts what was not decided": ("a_successor_holds_the_group", "SUCCESSOR_HOLDS"),
    "FastDeploy's weights word reads CLEARED while the group is held": (
        "controller/test_engine_words.py::test_while_the_group_is_held_no_word_of_the_weights_says_normal",
    ),
}

NAMED = {fault for faults in SENTENCES.values() for fault in faults}


def test_every_sentence_names_faults_that_are_seeded_or_tests_that_are_there() -> None:
    seeded = {fault.name for fault in FAULTS}
    mutants = {
        mutant.bounds.split()[0].removeprefix("M_")
        for mutant in MUTANTS
        if mutant.model in ("park_and_vote", "recovery")
    }
    for name in NAMED:
        file, _, test = name.partition("::")
        if test:
            assert f"def {test}(" in (TESTS / file).read_text(encoding="utf-8"), name
        else:
            assert name in (mutants if name.isupper() else seeded), name


def test_every_fault_that_is_seeded_into_a_held_group_is_named_by_a_sentence() -> None:
    about_holds = {fault.name for fault in FAULTS if "hold" in fault.scope.split("starts=")[0]}
    assert about_holds <= NAMED
