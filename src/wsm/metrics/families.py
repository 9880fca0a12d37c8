"""The metrics of a group: its facts and its history as families of Prometheus. Pure.

Names have no colons, which Prometheus keeps for recording rules; only the aliases have vLLM's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client import core

import wsm
from wsm.metrics.history import EVENTS, Durations, JournalCounts, ServerCounts
from wsm.states.vocabulary import KVState, WeightState
from wsm.states.words import Operation
from wsm.status import GroupStatus
from wsm.status.facts import ALIVE, DEAD, NEVER, STOPPED, UNKNOWN, RankStatus
from wsm.status.rules import find

_Counter, _Histogram = core.CounterMetricFamily, core.HistogramMetricFamily
_Info = core.InfoMetricFamily
_LIVES: Final = (ALIVE, STOPPED, DEAD, NEVER, UNKNOWN)
_STEPS: Final = ("running", "parked", "broken")

#: Names of vLLM, for dashboards that know them; what they are aliases of.
VLLM: Final = "vllm"
_VLLM_OPERATION: Final = "update"


class _Families:
    """The families of one scrape, to which samples are added that have labels in common.

    `found`: each family once, by its name. `labels`: of all samples that are added by this.
    """

    def __init__(self, found: dict[str, Any], **labels: object) -> None:
        self.found, self._labels = found, labels

    def of(self, **labels: object) -> _Families:
        return _Families(self.found, **self._labels, **labels)

    def gauge(self, name: str, text: str, value: float | None, **labels: object) -> None:
        if value is not None:
            self.add(core.GaugeMetricFamily, name, text, float(value), **labels)

    def add(self, kind: Any, name: str, text: str, sample: Any, **labels: object) -> None:
        """Add a number; of an info what its labels say; of a state set whether each state is."""
        labels = {**self._labels, **labels}
        self._family(kind, name, text, labels).add_metric(_texts(labels), sample)

    def one_of(self, name: str, text: str, now: str | None, states: Iterable[str], **labels: object) -> None:
        """Add a state set: 1 for the state that it is in, 0 for the others."""
        self.add(core.StateSetMetricFamily, name, text, {each: each == now for each in states}, **labels)

    def by(self, kind: Any, name: str, text: str, found: Mapping[Any, Any], *names: str) -> None:
        """Add counts, or durations, by `names`, which the keys of `found` are values of."""
        family = self._family(kind, name, text, (*self._labels, *names))
        for key, each in sorted(found.items()):
            sample = (each.buckets(), each.total_s) if isinstance(each, Durations) else (each,)
            family.add_metric([*_texts(self._labels), *key], *sample)

    def _family(self, kind: Any, name: str, text: str, labels: Iterable[str]) -> Any:
        return self.found.get(name) or self.found.setdefault(name, kind(name, text, labels=list(labels)))


def _texts(labels: Mapping[str, object]) -> list[str]:
    return list(map(str, labels.values()))


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
    told = _Families({})
    text = "The version of wsm that exports this."
    told.add(_Info, "wsm_build", text, {"version": wsm.__version__})
    told.gauge("wsm_exporter_start_time_seconds", "When this exporter began to count.", started_s)
    if server is not None:
        text = "Requests that this server answered, until the last byte of their answers."
        names = "route", "method", "status"
        told.by(_Histogram, "wsm_http_request_seconds", text, server.requests, *names)
        text = "Requests for text that wait in a hold."
        told.gauge("wsm_http_texts_waiting", text, server.texts_waiting)
        text = "Times that the file of requests was found damaged or emptied, or could not be used any more."
        told.add(_Counter, "wsm_http_requests_file_faults", text, server.file_faults)
        text = "Verbs of trainers that this server refused, since they cannot be honoured."
        told.by(_Counter, "wsm_http_unsupported", text, server.unsupported, "surface", "verb")
    for facts, history in groups:
        of_group = told.of(group=facts.name)
        _group(of_group, facts)
        for rank in facts.ranks:
            _rank(of_group.of(rank=rank.rank), rank)
        _history(of_group, history, now_ns)
        if VLLM in aliases:
            _as_vllm(of_group, facts, history)
    return list(told.found.values())


def _group(told: _Families, facts: GroupStatus) -> None:
    told.gauge("wsm_up", "Whether the group's segment can be read.", not facts.problem)
    told.gauge("wsm_serving", "Whether every rank may step.", facts.serving)
    text = "What 'wsm explain' finds first; 1 for the rule that applies."
    found = find(facts)
    told.add(_Info, "wsm_finding", text, {"finding": found.code})
    text = "The ranks that this finding is about, and the action that they keep from its end."
    for rank in found.ranks:
        said = {"finding": found.code, "action": found.action}
        told.add(_Info, "wsm_finding_rank", text, said, rank=rank)
    if facts.problem:
        return
    version = facts.version
    command, hold = facts.command, facts.hold
    told.gauge("wsm_held", "Whether the group stands under a hold.", hold is not None)
    if hold is not None:
        told.add(_Info, "wsm_hold", "Whose hold that is.", {"owner": hold.owner})
    text = "Whether that hold is released by force alone, since an update was refused or failed."
    told.gauge("wsm_hold_closed", text, facts.closed is not None)
    text = "Seconds until the lease of the hold runs out; absent: it has none."
    told.gauge("wsm_hold_lease_left_seconds", text, facts.lease_left_s)
    if version is not None:
        text = "The version that the group has committed."
        told.add(_Info, "wsm_version", text, {"version": version})
    if facts.epoch:
        text = "Incarnation of the group; grows when a rank is replaced."
        told.gauge("wsm_epoch", text, command.epoch)
        told.gauge("wsm_sequence", "Number of the last command.", command.sequence)
    text = "Whether a command of this kind is under way."
    kind = None if facts.over else facts.asked_operation
    for operation in (each for each in Operation if each.is_open):
        told.gauge("wsm_command_in_flight", text, operation is kind, operation=operation.name.lower())
    text = "Seconds that the caller of a prepared command has left for its decision; absent: none is asked."
    told.gauge("wsm_decision_left_seconds", text, facts.decision_left_s)
    text = "Whether the process that has the controller role lives and is stopped."
    told.gauge("wsm_controller_stopped", text, facts.controller_stopped)
    text = "Seconds for which the command has waited for a word of its controller; absent: it waits for none."
    late_s = facts.controller_unanswered_s
    late_s = late_s if late_s is not None and late_s > 0 else None
    told.gauge("wsm_controller_unanswered_seconds", text, late_s)
    text = "Whether a process replaces ranks that are lost."
    told.gauge("wsm_supervised", text, facts.supervisor_life == ALIVE)
    told.gauge("wsm_damaged_words", "Words that say what no word can say.", len(facts.damaged))
    told.gauge("wsm_ranks", "Participants of the group.", len(facts.ranks))


def _rank(told: _Families, rank: RankStatus) -> None:
    text = "State of the rank's weights, and of its KV cache."
    weights, kv = [state.name for state in WeightState], [state.name for state in KVState]
    told.one_of("wsm_state", text, rank.weights, weights, machine="weights")
    told.one_of("wsm_state", text, rank.kv, kv, machine="kv_cache")
    told.one_of("wsm_rank_life", "What is known of the rank's process.", rank.life, _LIVES)
    if not rank.helper:
        kind = "What the rank's loop does; broken: its last step raised."
        told.one_of("wsm_step_kind", kind, rank.step_kind, _STEPS)
        text = "Number of the last step that the rank entered, modulo 2^27."
        told.gauge("wsm_step", text, None if rank.step_kind is None else rank.step)
    text = "Seconds since the rank's heartbeat grew; tells something only while a command is under way."
    told.gauge("wsm_rank_heartbeat_age_seconds", text, rank.beat_s)
    told.gauge("wsm_rank_status_age_seconds", "Seconds since its status changed.", rank.since_s)
    text = "Bytes that the rank has prepared of a command which waits for its caller's decision."
    told.gauge("wsm_staged_bytes", text, rank.staged_bytes)
    if rank.action is not None and rank.action.seconds is not None:
        action = rank.action
        text = "Seconds that the rank has been inside of this action."
        told.gauge("wsm_action_running_seconds", text, action.seconds, action=action.name)
        text = "Seconds that the action which the rank is inside of may take."
        told.gauge("wsm_action_deadline_seconds", text, action.deadline_s, action=action.name)


def _history(told: _Families, history: JournalCounts, now_ns: int) -> None:
    text = "From a command's word to the answer of its controller."
    told.by(_Histogram, "wsm_command_seconds", text, history.commands, "operation", "outcome")
    text = "The longest time that a rank could not serve, of commands that were carried out."
    told.by(_Histogram, "wsm_pause_seconds", text, history.pauses, "operation")
    text = "Time that hot updates staged their version beside the one that served."
    told.by(_Histogram, "wsm_staging_seconds", text, history.staging, "operation")
    told.by(_Histogram, "wsm_action_seconds", "Actions of all ranks.", history.actions, "action")
    told.by(_Histogram, "wsm_load_seconds", "Loads of a version on one rank.", history.loads)
    text = "Commands that were refused or failed, by the error's code."
    told.by(_Counter, "wsm_command_errors", text, history.command_errors, "operation", "error")
    text = "Actions that failed, by the error's code or type."
    told.by(_Counter, "wsm_action_errors", text, history.action_errors, "rank", "action", "error")
    told.by(_Counter, "wsm_decisions", "Decisions of controllers.", history.decisions, "decision")
    for kind, (name, text) in EVENTS.items():
        found = {(rank,): count for (rank, event), count in history.events.items() if event == kind}
        told.by(_Counter, name, text, found, "rank")
    text = "Bytes of weights that committed updates loaded, on all ranks."
    told.add(_Counter, "wsm_loaded_bytes", text, history.loaded_bytes)
    text = "Looks at a ring of the segment that found lines gone which were never counted."
    told.add(_Counter, "wsm_journal_gaps", text, history.lost_lines)
    text = "Lines of journals that are none, as a kill or a full disk leaves them."
    told.add(_Counter, "wsm_journal_unreadable_lines", text, history.unreadable_lines)
    if history.open is not None:
        operation, at_ns = history.open
        text = "Age of the command whose end nothing has told yet."
        age_s = max(now_ns - at_ns, 0) / 1e9
        told.gauge("wsm_command_age_seconds", text, age_s, operation=operation)


def _as_vllm(told: _Families, facts: GroupStatus, history: JournalCounts) -> None:
    """Tell the two metrics that vLLM has of weight updates, under its names."""
    every, updates = Durations(), (Operation.UPDATE, Operation.HOT_UPDATE)
    for (operation, _), each in history.commands.items():
        if operation in [update.name.lower() for update in updates]:
            every.counts = [mine + more for mine, more in zip(every.counts, each.counts, strict=True)]
            every.total_s += each.total_s
    name = "vllm:rl_weight_update_operation_duration_seconds"
    text = "Alias of wsm_command_seconds, for updates."
    told.by(_Histogram, name, text, {(_VLLM_OPERATION,): every}, "operation")
    is_open = not facts.problem and not facts.over and facts.asked_operation in updates
    name, text = "vllm:rl_weight_update_operations_in_flight", "Alias of wsm_command_in_flight, for updates."
    told.gauge(name, text, is_open, operation=_VLLM_OPERATION)
