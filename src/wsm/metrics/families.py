"""The metrics of a group: its facts and its history as families of Prometheus. Pure.

Names have no colons, which Prometheus keeps for recording rules; only the aliases have vLLM's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    StateSetMetricFamily,
)

import wsm
from wsm.journal import entry as kinds
from wsm.metrics.history import Durations, JournalCounts, ServerCounts
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import Operation
from wsm.status import GroupStatus
from wsm.status.facts import ALIVE, DEAD, NEVER, STOPPED, UNKNOWN, RankStatus
from wsm.status.rules import find

_LIVES: Final = (ALIVE, STOPPED, DEAD, NEVER, UNKNOWN)
_STEPS: Final = ("running", "parked", "broken")
_OPERATIONS: Final = (
    Operation.CLEAR,
    Operation.UPDATE,
    Operation.HOT_UPDATE,
    Operation.HOLD,
    Operation.RELEASE,
)

#: Counters of entries that a night is looked at for, by their kind.
_EVENTS: Final = {
    kinds.STARTED: ("wsm_rank_starts", "Processes that began as this rank."),
    kinds.RANK_LOST: ("wsm_ranks_lost", "Times that a controller found the process of this rank gone."),
    kinds.STEP_BROKEN: ("wsm_steps_broken", "Steps that raised."),
    kinds.WAIT_EXPIRED: ("wsm_waits_expired", "Waits that passed their deadline, or actions that did."),
    kinds.INTERRUPTED: ("wsm_interruptions", "Times that communicators were broken under a collective."),
}

#: Names of vLLM, for dashboards that know them; what they are aliases of.
VLLM: Final = "vllm"
_VLLM_OPERATION: Final = "update"


class _Families:
    """The families of one scrape: every group adds its samples, and each family is told once."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def gauge(self, name: str, text: str, value: float | None, **labels: object) -> None:
        if value is not None:
            self._family(GaugeMetricFamily, name, text, labels).add_metric(_texts(labels), float(value))

    def info(self, name: str, text: str, said: Mapping[str, str], **labels: object) -> None:
        """Add a sample of 1 whose labels say something."""
        self._family(InfoMetricFamily, name, text, labels).add_metric(_texts(labels), said)

    def counter(self, name: str, text: str, value: float, **labels: object) -> None:
        self._family(CounterMetricFamily, name, text, labels).add_metric(_texts(labels), value)

    def one_of(self, name: str, text: str, now: str | None, states: Iterable[str], **labels: object) -> None:
        """Add a state set: 1 for the state that it is in, 0 for the others."""
        values = {state: state == now for state in states}
        self._family(StateSetMetricFamily, name, text, labels).add_metric(_texts(labels), values)

    def durations(
        self, name: str, text: str, found: Mapping[tuple[str, ...], Durations], *names: str, **labels: object
    ) -> None:
        """Add histograms by `names`, which the keys of `found` are values of."""
        of_all = {**labels, **dict.fromkeys(names, "")}
        family = self._family(HistogramMetricFamily, name, text, of_all)
        for key, each in sorted(found.items()):
            family.add_metric([*_texts(labels), *key], each.buckets(), sum_value=each.total_s)

    def counts(
        self, name: str, text: str, found: Mapping[tuple[str, ...], float], *names: str, **labels: object
    ) -> None:
        """Add counters by `names`, which the keys of `found` are values of."""
        family = self._family(CounterMetricFamily, name, text, {**labels, **dict.fromkeys(names, "")})
        for key, count in sorted(found.items()):
            family.add_metric([*_texts(labels), *key], count)

    def _family(self, kind: Any, name: str, text: str, labels: Mapping[str, object]) -> Any:
        if name not in self.found:
            self.found[name] = kind(name, text, labels=list(labels))
        return self.found[name]


def _texts(labels: Mapping[str, object]) -> list[str]:
    return [str(value) for value in labels.values()]


def families(
    groups: Sequence[tuple[GroupStatus, JournalCounts]],
    *,
    now_ns: int,
    started_s: float,
    aliases: Iterable[str] = (),
    server: ServerCounts | None = None,
) -> list[Any]:
    """Return the families of a scrape.

    Parameters
    ----------
    groups : sequence of (GroupStatus, JournalCounts)
        Each group once.
    now_ns : int
        The host's monotonic clock, which journals have their times of.
    started_s : float
        When the exporter began, in seconds since the Unix epoch.
    aliases : iterable of str
        Whose names are told, too: :data:`VLLM`.
    server : ServerCounts or None
        Of the server over HTTP that answers the scrape.

    Returns
    -------
    list of prometheus_client.Metric
        Equal names are one family.
    """
    told = _Families()
    told.info("wsm_build", "The version of wsm that exports this.", {"version": wsm.__version__})
    told.gauge("wsm_exporter_start_time_seconds", "When this exporter began to count.", started_s)
    if server is not None:
        text = "Requests that this server answered, until the last byte of their answers."
        told.durations("wsm_http_request_seconds", text, server.requests, "route", "method", "status")
        text = "Requests for text that wait in a hold."
        told.gauge("wsm_http_texts_waiting", text, server.texts_waiting)
        text = "Times that the file of requests was found damaged or emptied, or could not be used any more."
        told.counter("wsm_http_requests_file_faults", text, server.file_faults)
        text = "Verbs of trainers that this server refused, since they cannot be honoured."
        told.counts("wsm_http_unsupported", text, server.unsupported, "surface", "verb")
    for facts, history in groups:
        _group(told, facts)
        for rank in facts.ranks:
            _rank(told, facts.name, rank)
        _history(told, facts.name, history, now_ns)
        if VLLM in aliases:
            _as_vllm(told, facts, history)
    return list(told.found.values())


def _group(told: _Families, facts: GroupStatus) -> None:
    name = facts.name
    told.gauge("wsm_up", "Whether the group's segment can be read.", not facts.problem, group=name)
    told.gauge("wsm_serving", "Whether every rank may step.", facts.serving, group=name)
    text = "What 'wsm explain' finds first; 1 for the rule that applies."
    found = find(facts)
    told.info("wsm_finding", text, {"finding": found.code}, group=name)
    text = "The ranks that this finding is about, and the action that they keep from its end."
    for rank in found.ranks:
        told.info(
            "wsm_finding_rank", text, {"finding": found.code, "action": found.action}, group=name, rank=rank
        )
    if facts.problem:
        return
    version = facts.version
    command, hold = facts.command, facts.hold
    told.gauge("wsm_held", "Whether the group stands under a hold.", hold is not None, group=name)
    if hold is not None:
        told.info("wsm_hold", "Whose hold that is.", {"owner": hold.owner}, group=name)
    text = "Whether that hold is released by force alone, since an update was refused or failed."
    told.gauge("wsm_hold_closed", text, facts.closed is not None, group=name)
    text = "Seconds until the lease of the hold runs out; absent: it has none."
    told.gauge("wsm_hold_lease_left_seconds", text, facts.lease_left_s, group=name)
    if version is not None:
        text = "The version that the group has committed."
        told.info("wsm_version", text, {"version": version}, group=name)
    if facts.epoch:
        text = "Incarnation of the group; grows when a rank is replaced."
        told.gauge("wsm_epoch", text, command.epoch, group=name)
        told.gauge("wsm_sequence", "Number of the last command.", command.sequence, group=name)
    text = "Whether a command of this kind is under way."
    kind = None if facts.over else facts.asked_operation
    for operation in _OPERATIONS:
        told.gauge(
            "wsm_command_in_flight", text, operation is kind, group=name, operation=operation.name.lower()
        )
    text = "Seconds that the caller of a prepared command has left for its decision; absent: none is asked."
    told.gauge("wsm_decision_left_seconds", text, facts.decision_left_s, group=name)
    text = "Whether the process that has the controller role lives and is stopped."
    told.gauge("wsm_controller_stopped", text, facts.controller_stopped, group=name)
    text = "Seconds for which the command has waited for a word of its controller; absent: it waits for none."
    late_s = facts.controller_unanswered_s
    late_s = late_s if late_s is not None and late_s > 0 else None
    told.gauge("wsm_controller_unanswered_seconds", text, late_s, group=name)
    text = "Whether a process replaces ranks that are lost."
    told.gauge("wsm_supervised", text, facts.supervisor_life == ALIVE, group=name)
    told.gauge("wsm_damaged_words", "Words that say what no word can say.", len(facts.damaged), group=name)
    told.gauge("wsm_ranks", "Participants of the group.", len(facts.ranks), group=name)


def _rank(told: _Families, group: str, rank: RankStatus) -> None:
    who = {"group": group, "rank": rank.rank}
    text = "State of the rank's weights, and of its KV cache."
    weights, kv = [state.name for state in WeightState], [state.name for state in KVState]
    told.one_of("wsm_state", text, rank.weights, weights, **who, machine="weights")
    told.one_of("wsm_state", text, rank.kv, kv, **who, machine="kv_cache")
    told.one_of("wsm_rank_life", "What is known of the rank's process.", rank.life, _LIVES, **who)
    if not rank.helper:
        kind = "What the rank's loop does; broken: its last step raised."
        told.one_of("wsm_step_kind", kind, rank.step_kind, _STEPS, **who)
        text = "Number of the last step that the rank entered, modulo 2^27."
        told.gauge("wsm_step", text, None if rank.step_kind is None else rank.step, **who)
    text = "Seconds since the rank's heartbeat grew; tells something only while a command is under way."
    told.gauge("wsm_rank_heartbeat_age_seconds", text, rank.beat_s, **who)
    told.gauge("wsm_rank_status_age_seconds", "Seconds since its status changed.", rank.since_s, **who)
    text = "Bytes that the rank has prepared of a command which waits for its caller's decision."
    told.gauge("wsm_staged_bytes", text, rank.staged_bytes, **who)
    if rank.action is not None and rank.action.seconds is not None:
        action = rank.action
        text = "Seconds that the rank has been inside of this action."
        told.gauge("wsm_action_running_seconds", text, action.seconds, **who, action=action.name)
        text = "Seconds that the action which the rank is inside of may take."
        told.gauge("wsm_action_deadline_seconds", text, action.deadline_s, **who, action=action.name)


def _history(told: _Families, group: str, history: JournalCounts, now_ns: int) -> None:
    text = "From a command's word to the answer of its controller."
    told.durations("wsm_command_seconds", text, history.commands, "operation", "outcome", group=group)
    text = "The longest time that a rank could not serve, of commands that were carried out."
    told.durations("wsm_pause_seconds", text, history.pauses, "operation", group=group)
    text = "Time that hot updates staged their version beside the one that served."
    told.durations("wsm_staging_seconds", text, history.staging, "operation", group=group)
    told.durations("wsm_action_seconds", "Actions of all ranks.", history.actions, "action", group=group)
    told.durations("wsm_load_seconds", "Loads of a version on one rank.", history.loads, group=group)
    text = "Commands that were refused or failed, by the error's code."
    told.counts("wsm_command_errors", text, history.command_errors, "operation", "error", group=group)
    text = "Actions that failed, by the error's code or type."
    told.counts("wsm_action_errors", text, history.action_errors, "rank", "action", "error", group=group)
    told.counts("wsm_decisions", "Decisions of controllers.", history.decisions, "decision", group=group)
    for kind, (name, text) in _EVENTS.items():
        found: dict[tuple[str, ...], float] = {
            (rank,): count for (rank, event), count in history.events.items() if event == kind
        }
        told.counts(name, text, found, "rank", group=group)
    text = "Bytes of weights that committed updates loaded, on all ranks."
    told.counter("wsm_loaded_bytes", text, history.loaded_bytes, group=group)
    text = "Looks at a ring of the segment that found lines gone which were never counted."
    told.counter("wsm_journal_gaps", text, history.lost_lines, group=group)
    text = "Lines of journals that are none, as a kill or a full disk leaves them."
    told.counter("wsm_journal_unreadable_lines", text, history.unreadable_lines, group=group)
    if history.open is not None:
        operation, at_ns = history.open
        text = "Age of the command whose end nothing has told yet."
        age_s = max(now_ns - at_ns, 0) / 1e9
        told.gauge("wsm_command_age_seconds", text, age_s, group=group, operation=operation)


def _as_vllm(told: _Families, facts: GroupStatus, history: JournalCounts) -> None:
    """Tell the two metrics that vLLM has of weight updates, under its names."""
    every = Durations()
    for (operation, _), each in history.commands.items():
        if operation in (Operation.UPDATE.name.lower(), Operation.HOT_UPDATE.name.lower()):
            every.counts = [mine + more for mine, more in zip(every.counts, each.counts, strict=True)]
            every.total_s += each.total_s
    text = "Alias of wsm_command_seconds, for updates."
    found: dict[tuple[str, ...], Durations] = {(_VLLM_OPERATION,): every}
    told.durations(
        "vllm:rl_weight_update_operation_duration_seconds", text, found, "operation", group=facts.name
    )
    open_now = not facts.problem and not facts.over
    updates = open_now and facts.asked_operation in (Operation.UPDATE, Operation.HOT_UPDATE)
    text = "Alias of wsm_command_in_flight, for updates."
    told.gauge(
        "vllm:rl_weight_update_operations_in_flight",
        text,
        updates,
        group=facts.name,
        operation=_VLLM_OPERATION,
    )
