"""The role that commands a group: clear it, update it, look at it. One process at a time, per command.

Responsible for what can be asked, and what a caller gets. The keywords of each command stand in
:mod:`._command_request`; how a request is carried out is in :mod:`._execution`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, final

from wsm.clock import Clock, SystemClock
from wsm.config import EngineWordsConfig
from wsm.controller._command_request import (
    SETTLE_S,
    ClearKeywords,
    CommandRequest,
    HoldKeywords,
    PrepareKeywords,
    ReleaseKeywords,
    UpdateKeywords,
    keywords_of,
)
from wsm.controller._drive import access_to_a_living_group
from wsm.controller._execution import Execution
from wsm.controller.errors import withdrawn
from wsm.controller.pending import Pending, Prepared, Verdict
from wsm.receipt import Receipt
from wsm.status.facts import GroupStatus
from wsm.typed import Wait, typed


@final
@typed
class Controller:
    """Commands the group `name`.

    Any number of processes may have one; the kernel lets one command at a time. Safe for threads.

    Parameters
    ----------
    name : str
        The group.
    engine_words : EngineWordsConfig or None
        FastDeploy's words of the same group: each command takes them first, as an engine would.
    clock : Clock or None
        For deadlines; None is the host's.
    meanwhile : callable or None
        For a test that plays all processes in one thread: ``meanwhile(seconds)`` is called where a command
        would wait that long at most, and with 0.0 before and behind each word that it writes; what it raises
        ends the command there, as the death of this process would. Every command, a begun one too, is over
        when its call returns, so :meth:`lease` takes the place of :meth:`prepare`. None: commands wait.
    directory : path or None
        Where the segment lies; this user's private directory by default.
    journal_directory : path or None
        Where ``controller.ndjson`` is appended to; None: beside the ranks' journals, where the group's
        configuration names a directory for them. The last lines of all controllers stand in the segment, too.
    wait_s : float
        Seconds to wait for a group all of whose ranks live and have joined: for a trainer that may start
        before its engine, or beside the segment of a group that died. Blocks that long at most; then it is as
        with 0.

    Raises
    ------
    SegmentMissingError
        If there is no such group.
    RefusedError, BadInputError
        If its segment is another user's, of another build of wsm, or damaged.
    """

    def __init__(
        self,
        name: str,
        *,
        engine_words: EngineWordsConfig | None = None,
        clock: Clock | None = None,
        meanwhile: Callable[[float], object] | None = None,
        directory: str | Path | None = None,
        journal_directory: str | Path | None = None,
        wait_s: Wait = 0.0,
    ) -> None:
        self._access = access_to_a_living_group(
            name,
            wait_s=wait_s,
            directory=directory,
            journal_directory=journal_directory,
            meanwhile=meanwhile,
        )
        self._undecided: dict[str, Prepared] = {}  # what this object has prepared, by its request id
        self._clock = clock or SystemClock()
        self._engine_words = engine_words or EngineWordsConfig()

    @keywords_of(ClearKeywords)
    def clear(self, keywords: ClearKeywords) -> Receipt:
        """Release weights and KV cache on every rank, or one of them, and wait for it.

        Parameters
        ----------
        tags : collection of Tag
            What to give back, WEIGHTS or KV_CACHE or both. The group does not serve without either.
        in_flight : InFlightPolicy or None
            What becomes of running requests; None: ABORT, and under a hold what that said. Under a hold it is
            about the requests that the hold has set aside, and DRAIN is refused while there are any.
        kv_policy : KVPolicy
            Of a KV cache that stays while its weights go: DROP empties it; KEEP leaves its blocks for the
            same weights, and for others if their update says KEEP too. Refused where no KV cache stays.
        deadline_s : float
            Seconds after which an undecided command is aborted.
        settle_s : float
            Seconds after a decision until :class:`UnsettledError` says who is not done.
        wait_s : float
            Seconds to wait for another controller to finish its command; 0 is refused at once.
        request_id : str or None
            Names the request everywhere; drawn if not given.
        hold : str or None
            The id of the hold that the group stands under; refused if that is no longer in force (code
            ``hold-not-in-force``). None: it does not matter. A clear under a hold stays under it.
        still_wanted : callable or None
            Asked once it is this controller's turn, before anything is written; False raises
            :class:`CommandWithdrawnError`.

        Returns
        -------
        Receipt
            ``CLEARED``, or ``ALREADY_CLEARED`` where nothing of it was held.

        Raises
        ------
        RoleBusyError, CommandOpenError
            If another command is under way. Nothing was written.
        BadInputError
            If the tags are none. Nothing was written.
        MixedGroupError
            If only one half is to go, and the ranks hold different things. Nothing was written.
        CommandRefusedError
            If a rank refused. Nothing was changed.
        RankFailedError, RankLostError, CommandTimeoutError
            If a rank failed, died, or was late; the message says what the group holds now.
        UnsettledError
            If it is decided to go on, and some rank has not said that it is done.
        """
        return self._begin(keywords.request(), here=True).result()

    @keywords_of(UpdateKeywords)
    def update(self, keywords: UpdateKeywords) -> Receipt:
        """Load a version on every rank and serve it, and wait for it.

        Parameters
        ----------
        version : str or int or None
            Which, by its label; 7 is ``"7"``. None takes the newest that the source announces
            (``version.yaml``), as rank 0 finds it. The one that is held is not loaded again, whether it is
            named or found; `force` does.
        tags : collection of Tag
            What to bring back, WEIGHTS or KV_CACHE or both. The group serves once it has both. Weights that
            are held already in that version are not loaded again where only the KV cache is missing.
        hot : bool
            Stage the version beside the one that serves, and stop the group only to flip. If anything
            fails before that, the old version serves on, untouched.
        hot_fallback : HotFallback or str
            For a group that has no room for two versions, or holds none: ``"refuse"``, or ``"in_place"``, an
            ordinary update under the same request id; the receipt says why. Each of the two has the deadline.
        in_flight : InFlightPolicy or None
            What becomes of requests that run when the group stops; None: ABORT, and for a hot update KEEP;
            under a hold as for :meth:`clear`.
        kv_policy : KVPolicy
            What becomes of KV blocks that the old weights computed; all but DROP only for a group that
            serves, and KEEP_IN_FLIGHT only where requests in flight are kept.
        force : bool
            Load even if the group holds that version already; only with the weights among the tags.
        partial : bool
            Whether the version may lack tensors, which then keep what they hold; only for a group that
            serves, and not hot. The receipt says so, and whether the group could be restored after the loss
            of a rank (`restorable`); each rank's report names them.
        transfer_mode : TransferMode or str or None
            By which way the version travels, for ``rsync`` and ``gdr``; None: as configured. Ranks refuse one
            that is not available to them, before anything is touched.
        unknown_tensors : UnknownTensors or str or None
            What becomes of tensors that the model does not have: ``"refuse"`` the version, or ``"ignore"``
            them, counted in the fact ``unknown_tensors`` of each rank's report; None: as configured.
        verify_checksum : bool or None
            For ``rsync`` and ``gdr``: whether a stream that promises no digests is refused; False loads it as
            unverified. None: as configured. What goes straight into device memory has no such check in
            FastDeploy; True is a warning in the log there.
        rsync_config : mapping or None
            Options of CheckpointTransfer for this command alone, over those that are configured.
        deadline_s, settle_s, wait_s, request_id, hold, still_wanted
            As :meth:`clear`.
        after : After or str
            What is left of admission: ``"as-before"`` (a held group stays held), ``"held"``, or ``"serve"``,
            which ends a hold. So a trainer's pause, update and resume can be one command.
        owner : str
            Whose hold that is, for the last two.
        on_failure : OnFailure or str or None
            What becomes of a group that serves, once an update in place has overwritten its weights and
            fails: ``"restore"`` loads the version before again, as it was loaded, and the call returns after
            that; ``"clear"`` leaves the group CLEARED. None: as the group is configured. The error says how
            it ended: ``restored`` is the version that serves again, ``not_restored`` the code of what was in
            the way (``nothing-to-restore`` where the source does not keep that version).
        restore_s : float or None
            Seconds after which that restore is aborted; None: as `deadline_s`.

        Returns
        -------
        Receipt
            ``UPDATED``; or ``ALREADY_SERVED`` or ``ALREADY_HELD``, and then nothing was done. Its ``missing``
            names what is still to be brought before the group serves.

        Raises
        ------
        BadInputError
            If `version`, the tags, the fallback or the mode is none, or the tags do not go with the other
            arguments. Nothing was written.
        RefusedError
            If a partial update would rely on weights that do not serve or is to be hot (code
            ``partial-update-refused``), or nothing serves that a hot update could replace (code
            ``nothing-served``). Nothing was written.
        MixedGroupError
            If the ranks hold different things. Nothing was changed.
        GroupError
            If the ranks prepared different weights (code ``manifest-mismatch``); the command was aborted.
        WsmError
            As :meth:`clear`.
        """
        return self._begin(keywords.request(), here=True).result()

    @keywords_of(HoldKeywords)
    def hold(self, keywords: HoldKeywords) -> Receipt:
        """Let every rank stand at one step, with all that it has in memory, until :meth:`release`.

        No step begins between this receipt and the word of the release. Clears and updates stay under the
        hold. Legal whatever the group has in memory; where it is held already, its owner renews the lease.

        Parameters
        ----------
        in_flight : InFlightPolicy
            What becomes of running requests: KEEP sets them aside, and they go on after the release.
        kv_policy : KVPolicy
            KEEP leaves the blocks in the KV cache; DROP forgets them once all stand. The memory stays.
        owner : str
            Who may release the group: a name, not a process.
        lease_s : float or None
            Seconds after which the hold runs out unless its owner asks again; None: never.
        on_lease : OnLease or str
            Then ``"serve"`` releases a group that has its committed version whole in memory; with ``"stay"``
            it stays held, and every status says whose lease ran out.
        deadline_s, settle_s, request_id, still_wanted
            As :meth:`clear`. The request's id is that of the hold.
        wait_s : float or None
            Seconds to wait for another controller to finish its command; None: as long as the deadline.

        Returns
        -------
        Receipt
            ``HELD``, or ``HOLD_RENEWED``.

        Raises
        ------
        BadInputError
            If the policy, the owner or the lease is none. Nothing was written.
        RefusedError
            If another owner holds the group (code ``held-by-another``). Nothing was written.
        WsmError
            As :meth:`clear`. A hold that failed left cache and admission as they were.
        """
        return self._begin(keywords.request(), here=True).result()

    @keywords_of(ReleaseKeywords)
    def release(self, keywords: ReleaseKeywords) -> Receipt:
        """Let the ranks of a held group step again; of an open group it is a success.

        Parameters
        ----------
        owner : str
            Whose hold it is.
        hold : str or None
            The id of the hold; refused if that is no longer in force. None: whichever it is.
        force : bool
            Release another's hold, too, or a closed one.
        deadline_s, settle_s, wait_s, request_id, still_wanted
            As :meth:`hold`.

        Returns
        -------
        Receipt
            ``RELEASED``, or ``ALREADY_OPEN``.

        Raises
        ------
        RefusedError
            If the group could not serve (code ``cannot-serve``; it stays held), if the hold is another's
            (``held-by-another``), closed (``hold-closed``), or not in force (``hold-not-in-force``). Nothing
            was written.
        WsmError
            As :meth:`clear`. After a release that failed the group is held as before.
        """
        return self._begin(keywords.request(), here=True).result()

    @keywords_of(HoldKeywords)
    def begin_hold(self, keywords: HoldKeywords) -> Pending:
        """As :meth:`hold`, without waiting. Bad input raises here, all else at its ``result()``."""
        return self._begin(keywords.request())

    @keywords_of(ReleaseKeywords)
    def begin_release(self, keywords: ReleaseKeywords) -> Pending:
        """As :meth:`release`, without waiting. Bad input raises here, all else at its ``result()``."""
        return self._begin(keywords.request())

    @keywords_of(ClearKeywords)
    def begin_clear(self, keywords: ClearKeywords) -> Pending:
        """As :meth:`clear`, without waiting. Bad input raises here, all else at its ``result()``."""
        return self._begin(keywords.request())

    @keywords_of(UpdateKeywords)
    def begin_update(self, keywords: UpdateKeywords) -> Pending:
        """As :meth:`update`, without waiting. Bad input raises here, all else at its ``result()``."""
        return self._begin(keywords.request())

    @keywords_of(PrepareKeywords)
    def prepare(self, keywords: PrepareKeywords) -> Prepared:
        """Load a version on every rank, and leave it to the caller whether the group serves it; wait for all.

        Groups are switched together so: prepare each, then commit one after the other. A caller that dies in
        between leaves groups that differ, and each says what it serves.

        Parameters
        ----------
        version, tags, hot_fallback, in_flight, kv_policy, force, partial, transfer_mode, unknown_tensors,
        verify_checksum, rsync_config, after, hold, owner, on_failure, restore_s
            As :meth:`update`.
        hot : bool
            Whether the version is staged beside the one that serves, which serves on until the decision.
            False loads in place: once all are PREPARED the old weights are gone, and are loaded again after
            an abort, a lease that is over, or the death of this process, as `on_failure` says. Where the
            version is served already and only `after` is left to be done, the ranks stand until the decision.
        deadline_s : float
            Seconds after which the command is aborted if not all are PREPARED.
        lease_s : float or None
            Seconds that may pass from then on until it is aborted undecided; None: as `deadline_s`.
        settle_s, wait_s, request_id, still_wanted
            As :meth:`update`.

        Returns
        -------
        Prepared
            All ranks have prepared it. Commit or abort it; until then every other command gets
            :class:`RoleBusyError`.

        Raises
        ------
        WsmError
            As :meth:`update`. The command was aborted then, or never written.
        """
        prepared = self._begin_prepare(keywords)
        try:
            return prepared.wait()
        except BaseException:
            prepared.give_up()
            raise

    @keywords_of(PrepareKeywords)
    def begin_prepare(self, keywords: PrepareKeywords) -> Prepared:
        """As :meth:`prepare`, without waiting; :meth:`Prepared.wait` does. Bad input raises here."""
        return self._begin_prepare(keywords)

    def _begin_prepare(self, keywords: PrepareKeywords) -> Prepared:
        verdict = Verdict(self._clock)
        pending = self._begin(keywords.request(), verdict)
        prepared = Prepared(pending, verdict, self._access.group.ring)
        self._undecided[prepared.request_id] = prepared
        pending.add_done_callback(lambda _: self._forget(prepared))
        return prepared

    def _forget(self, prepared: Prepared) -> None:
        if self._undecided.get(prepared.request_id) is prepared:  # another may have taken its id since
            del self._undecided[prepared.request_id]

    def _begin(
        self, request: CommandRequest, verdict: Verdict | None = None, *, here: bool = False
    ) -> Pending:
        request_id = request.arguments.request_id
        execution = Execution(self._access, self._engine_words, self._clock, request_id, verdict)
        return execution.pending.carry_out(partial(execution.run, request), here=here)

    @keywords_of(PrepareKeywords)
    def lease(self, keywords: PrepareKeywords) -> Receipt:
        """As :meth:`prepare`, for a decision that a lease holds and no process; wait for all.

        Once all are PREPARED the controller role is free, and this process may end; the decision belongs to
        the request id. :meth:`commit` and :meth:`abort` make it, from any process; all other commands get
        :class:`DecisionHeldError`. When the lease is over, a process of the group aborts the command.

        Parameters
        ----------
        version, tags, hot, hot_fallback, in_flight, kv_policy, force, partial, transfer_mode,
        unknown_tensors, verify_checksum, rsync_config, deadline_s, lease_s, settle_s, wait_s, request_id,
        after, hold, owner, on_failure, restore_s, still_wanted
            As :meth:`prepare`.

        Returns
        -------
        Receipt
            ``PREPARED``; or ``ALREADY_SERVED`` or ``ALREADY_HELD``, and then nothing is to be decided.

        Raises
        ------
        RefusedError
            If the command would take FastDeploy's words, which would be owed an answer until the decision
            (code ``lease-and-words``). Nothing was written.
        WsmError
            As :meth:`prepare`.
        """
        return self._begin(keywords.request(leased=True), Verdict(self._clock)).result()

    @keywords_of(PrepareKeywords)
    def begin_lease(self, keywords: PrepareKeywords) -> Pending:
        """As :meth:`lease`, without waiting. Bad input raises here, all else at its ``result()``."""
        return self._begin(keywords.request(leased=True), Verdict(self._clock))

    @typed
    def commit(
        self,
        request_id: str,
        *,
        settle_s: Wait = SETTLE_S,
        wait_s: Wait = 0.0,
        still_wanted: Callable[[], bool] | None = None,
    ) -> Receipt:
        """Serve what a lease holds (:meth:`lease`), or what this object has prepared, and wait for it.

        Parameters
        ----------
        request_id : str
            Which command.
        settle_s, wait_s, still_wanted
            As :meth:`clear`; what `still_wanted` raises leaves it undecided, too.

        Returns
        -------
        Receipt
            ``UPDATED``, a second time, too, while no other command was given.

        Raises
        ------
        RefusedError
            If that command is not there, or its decision is not its caller's (code ``not-prepared``), or it
            was aborted, by its lease or an operator (code ``decided-otherwise``). Nothing was written.
        RoleBusyError
            If a process holds the decision, or commands the group.
        WsmError
            As :meth:`update`.
        """
        asked = {"settle_s": settle_s, "wait_s": wait_s}
        return self.begin_commit(request_id, still_wanted=still_wanted, **asked).result()

    @typed
    def begin_commit(
        self,
        request_id: str,
        *,
        settle_s: Wait = SETTLE_S,
        wait_s: Wait = 0.0,
        still_wanted: Callable[[], bool] | None = None,
    ) -> Pending:
        """As :meth:`commit`, without waiting. Bad input raises here, all else at its ``result()``."""
        mine = self._undecided.get(request_id)
        if mine is None:
            asked = {"settle_s": settle_s, "wait_s": wait_s, "still_wanted": still_wanted}
            return self._settle(request_id, commit=True, **asked)
        if still_wanted is not None and not still_wanted():
            raise withdrawn("commit", request_id)
        return mine.begin_commit()

    @typed
    def abort(
        self,
        request_id: str | None = None,
        *,
        settle_s: Wait = SETTLE_S,
        wait_s: Wait = 0.0,
    ) -> Receipt:
        """Take back what a lease holds, or this object has prepared, and wait for it.

        Parameters
        ----------
        request_id : str or None
            Which command; None: whichever a lease holds.
        settle_s, wait_s : float
            As :meth:`clear`.

        Returns
        -------
        Receipt
            ``ABORTED``; its ``missing`` names what is gone, which of a hot update is nothing.

        Raises
        ------
        RefusedError
            As :meth:`commit`.
        RoleBusyError
            If a process holds the decision; it is named. Let it abort, or end it.
        """
        return self.begin_abort(request_id, settle_s=settle_s, wait_s=wait_s).result()

    @typed
    def begin_abort(
        self,
        request_id: str | None = None,
        *,
        settle_s: Wait = SETTLE_S,
        wait_s: Wait = 0.0,
    ) -> Pending:
        """As :meth:`abort`, without waiting. Bad input raises here, all else at its ``result()``."""
        mine = None if request_id is None else self._undecided.get(request_id)
        if mine is not None:
            return mine.begin_abort()
        return self._settle(request_id, commit=False, settle_s=settle_s, wait_s=wait_s)

    def _settle(self, request_id: str | None, **asked: Any) -> Pending:
        execution = Execution(self._access, self._engine_words, self._clock, request_id or "")
        return execution.pending.carry_out(partial(execution.settle, request_id, **asked))

    def status(self) -> GroupStatus:
        """Read what the group is doing now. Does not block, needs no role, works on a dead group.

        Raises
        ------
        RefusedError
            If this controller was closed.
        SegmentTruncatedError
            If the segment's file was cut short.
        InternalError
            If a word is none of this build (code ``word-format``).
        """
        self._access.begin_use()
        try:
            return self._access.group.status()
        finally:
            self._access.end_use()

    def close(self) -> None:
        """Let go of the segment. A command under way keeps what it needs until it is over. Idempotent."""
        self._access.close()

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
