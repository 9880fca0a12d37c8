/* A whole command on a whole group, as src/wsm/states/ has it: rank.py and phases.py, votes.py, decide.py, takeover.py, epochs.py.

   SHOWS    that clear, update and hot update end with one outcome for the group, whatever fails, is refused, expires, raises
            inside a step or a flip, dies, or is taken over, and that no process waits for ever. The labels in Rank are the names
            of Phase.
   HOLDS    in every state: a rank that enters a step has verified weights, the same version as all in that step, and a KV
            cache of that version; a decision is made once; a status never goes back within a sequence (but that a hot
            commit's PARKING follows PREPARED); a version is committed in its own word before the epoch is raised.
            in every end: all participants are idle and whole, and either no rank holds weights, or all hold the committed ones.
   MEASURED by `make models`, spin 6.5.2: bounds, states, what for
     defaults                                        30,081  any command, the controller may give up
     CMDS=2 FAILS=1                               1,101,825  two commands, one failure, refusal or deadline
     FAILS=3 CMDS=2 OPS=1 CLEARVOTE=1               357,587  a group that becomes FAULTED and is repaired
     CCRASH=1 FAILS=1                               459,903  a controller dies
     RCRASH=1 OPS=2                                 657,512  a rank dies in an update
     RCRASH=1 OPS=4                                 386,039  a rank dies in a hot update
     BREAKS=1 OPS=4                                 416,989  a step or a flip raises in a hot update
     MISREADS=1                                      42,811  a rank prepares another version
     H=1 OPS=3                                      451,808  a helper takes part
     H=1 OPS=4                                       74,593  a helper takes part in a hot update
     N=3 OPS=4                                      278,981  three ranks, hot update
     FAILS=1, any cycle                             180,647  no endless run
     LOSSES=1                                       147,092  a controller dies, and none follows
     STOPS=1 FAILS=1                                175,475  a controller is stopped for good
     STOPS=2                                         66,931  a controller is stopped, and goes on
     DECIDERS=6 OPS=6                               262,916  decided by a caller, or by its lease
     DECIDERS=6 OPS=4 LOSSES=1                      363,108  who holds a decision dies
     DECIDERS=6 OPS=4 STOPS=2                       210,189  who holds a decision is stopped, and goes on
     DECIDERS=6 OPS=4 CCRASH=1                      502,664  another controller finds a decision that is held
     DECIDERS=6 OPS=4, any cycle                    194,645  no endless run
     DECIDERS=6 OPS=4 RCRASH=1                    2,736,974  a rank dies while a decision is held
     DECIDERS=6 OPS=2 RCRASH=1                    5,065,752  the same in place
     DECIDERS=7 OPS=6 CMDS=2 FAILS=1             10,561,276  two commands, one failure
     DECIDERS=6 OPS=4 RCRASH=1 LOSSES=1          10,794,917  a rank and the holder die
     DECIDERS=6 OPS=4 STOPS=2 LOSSES=1              813,012  a stopped holder is ended
     DECIDERS=6 OPS=6 H=1                         3,814,051  a helper takes part
     LOSSES=1 FAILS=1, any cycle                    825,799  no endless run
     LOSSES=1 CCRASH=1 FAILS=1                    1,722,460  who ends its command dies, too
     LOSSES=1 CCRASH=1 CMDS=2 FAILS=1            24,400,232  the next controller comes late
     STOPS=2 LOSSES=1 FAILS=1                     1,118,912  a stopped controller is ended
     STOPS=1 RCRASH=1 OPS=4                         711,053  a rank dies beside a stopped controller
     STOPS=1 LOSSES=1 H=1 OPS=6                   2,870,280  a helper, a controller is stopped
     FAILS=1 BREAKS=1 OPS=6, any cycle            4,470,451  no endless run
     FAILS=2 CMDS=2 WORK=2                        5,409,199  more of everything
     CMDS=2 CCRASH=2 FAILS=1                     11,565,274  two controllers die
     RCRASH=1 CCRASH=1 FAILS=1 MISREADS=1        28,547,166  everything once
     RCRASH=1 BREAKS=1 OPS=6                     25,602,588  a rank dies and a step raises
     RCRASH=2 FAILS=1                            49,761,845  two deaths
     CMDS=2 RCRASH=1 OPS=5                        4,631,377  two commands and a death
     H=1 CCRASH=1 FAILS=1                         9,569,264  a helper, a controller dies
     H=1 RCRASH=1                                57,678,036  a helper, a rank or the helper dies
     N=3 FAILS=1                                  4,041,457  three ranks, one failure
     N=3 CCRASH=1 OPS=2                           3,518,487  three ranks, a controller dies
     N=3 BREAKS=1 OPS=4                          47,484,969  three ranks, a step raises
   ENDS     are enough: every wait blocks and every supply (steps, commands, failures, crashes) is bounded, so the graph has no
            cycle (checked: "any cycle"), and "no invalid end state" with the assertions in init is liveness.
   READING  Each word is read by itself, and what was read of it may be used late (the bits in `ok`): views are stale mixtures.
   ASSUMED  A step and a collective action are rendezvous: no rank leaves one before all have entered. A dead process is reaped
            before its slot is used again. The group's owner raises the epoch for a death and for a BROKEN step word.
            A hot update's KV policy is held by the version that each block carries: ranks do not wait for a helper to drop any.
            Every new epoch restores the committed version here; recovery.pml has what it restores after which command, and the
            record that is written before the committed word.
   HELPERS  are participants without steps, in no communicator: they never park, and vote for no collective action. They begin
            when a rank shows that it has accepted, and follow a hot commit when a rank serves the new version.
   ALONE    A controller that dies for good (LOSSES), or is stopped with the role (STOPS; a second one lets it go on), leaves its
            command to Keeper: a rank's thread, or the supervisor. It takes the role as soon as that is free, writes what is
            missing, and gives it back; beside a stopped one it writes ABORT once a participant has failed, and nothing else.
            Where all are PREPARED, or a rank is lost, the stopped one is named, and its end is enough (see init).
   HELD     With DECIDERS the decision of an update may be a caller's, or a caller's that its lease holds while no process has
            the role; that stands in the command word. A caller says COMMIT only once it was told that all are PREPARED; a
            process that decides in its place says ABORT. Time ends a lease at any moment after the caller was told.
   NOT      modelled: several nodes, overlapped steps, retries of a boot that failed, a helper whose own teardown fails for good.
   MUTANTS  -DM_NAME drops one rule; each is caught within the bounds that models/catalogue.py names. Dropping these changes
            nothing here, since a rendezvous implies them: the step number in "all stand at the same step", votes that are kept
            in later words, joining in FAILED (STOPPED joins as well), the dummy step in DRAINING (it serves as well).
*/
#ifndef N
#define N 2              /* ranks */
#endif
#ifndef H
#define H 0              /* helpers: participants without steps; at most one */
#endif
#ifndef WORK
#define WORK 1           /* steps per epoch that any rank may begin by itself; the others must join */
#endif
#ifndef CMDS
#define CMDS 1           /* commands, the boot updates of new epochs not counted */
#endif
#ifndef FAILS
#define FAILS 0          /* failing actions, refusals and expired deadlines of participants */
#endif
#ifndef BREAKS
#define BREAKS 0         /* steps, and flips of hot updates, that raise */
#endif
#ifndef RCRASH
#define RCRASH 0         /* crashes of participants */
#endif
#ifndef CCRASH
#define CCRASH 0         /* crashes of controllers; a successor takes over */
#endif
#ifndef MISREADS
#define MISREADS 0       /* participants that prepare another version than the one that was meant */
#endif
#ifndef OPS
#define OPS 7            /* commands that are given: 1 clear, 2 update, 4 hot update */
#endif
#ifndef CLEARVOTE
#define CLEARVOTE 0      /* whether the clear plan has a collective action (shutting groups down) behind the release */
#endif
#ifndef LOSSES
#define LOSSES 0         /* controllers that die, and none follows at once: the group ends what is open by itself */
#endif
#ifndef STOPS
#define STOPS 0          /* controllers that are stopped with the role, in the middle of a command, for a while or for ever */
#endif
#ifndef DECIDERS
#define DECIDERS 1       /* who decides updates: 1 their controller, 2 its caller, 4 a caller by its lease */
#endif
#define HELD (DECIDERS > 1)
#define ALONE (LOSSES + STOPS + HELD)
#define P (N+H)
#define ALL_RANKS ((1<<N)-1)
#define ALL ((1<<P)-1)
#define EPOCHS (RCRASH+BREAKS+1)
#define SEQUENCES (CMDS+EPOCHS)

/* states/words.py: Operation, StatusCode, StepKind */
#define NONE 0
#define CLEAR 1
#define UPDATE 2
#define COMMIT 3
#define ABORT 4
#define HOT_UPDATE 5
#define HOT_COMMIT 6
#define HOT_ABORT 7
#define ATTACHED 1
#define DRAINING 2
#define PARKING 3
#define ACCEPTED 4
#define VOTED 5          /* StatusCode.RUNNING */
#define PREPARED 6
#define FAILED 7
#define REFUSED 8
#define STOPPED_UNTOUCHED 9
#define STOPPED_TOUCHED 10
#define DONE_KEPT 11
#define DONE_CLEARED 12
#define DONE_COMMITTED 13
#define DONE_FAULTED 14
#define PARKED 0
#define RUNNING 1
#define BROKEN 2
#define WRONG 90         /* a version that was never meant */
#define EMPTY 91         /* a KV cache without blocks */

/* the words; each has one writer */
byte c_e = 1, c_q, c_op = NONE, c_v;                   /* command, and its arguments' version */
byte k_q, k_v = 1;                                     /* committed */
byte w_e[N], w_q[N], w_k[N], w_n[N];                   /* step */
byte t_e[P], t_q[P], t_c[P], t_r[P], t_v[P];           /* status (t_r: ready), and the report's version */

/* what the world knows and the participants do not */
byte died[P], rcrash, ccrash, fails, breaks, misreads, cmds, committed = 1, kv = EMPTY, wmax;
byte hole;                                             /* the step whose collectives were not run by all */
bool gives_up;                                         /* chosen once: no later deadline may hide a deadlock */
byte entered[EPOCHS*(WORK+1)], served[EPOCHS*(WORK+1)], met[SEQUENCES+1], decided[SEQUENCES+1], held[N];
bool idle[P], faulty[N], hurt[N], over;
#if ALONE
#define FREE 0
#define CONTROLLERS 1
#define KEEPERS 2
byte role = CONTROLLERS, losses, stops;                /* the kernel's lock; a death gives it back */
bool frozen, killed, gone;                             /* the controller is stopped; for good; is dead, and none has followed */
#endif
#if HELD
#define CONTROLLER 0
#define CALLER 1
#define LEASED 2         /* CALLER in its word; that its lease holds it stands in the arguments */
byte c_d = CONTROLLER;                                 /* in the command word: who decides */
bool told, expired, wish, silent;                      /* the caller knows the vote; its lease is over; it said COMMIT; or never */
#endif
#define AT ((e-1)*(WORK+1)+n)

#if P == 2
#define ANY(X) (X(0) || X(1))
#define EACH(X,A) :: atomic { X(0) -> A(0) } :: atomic { X(1) -> A(1) }
#elif P == 3
#define ANY(X) (X(0) || X(1) || X(2))
#define EACH(X,A) :: atomic { X(0) -> A(0) } :: atomic { X(1) -> A(1) } :: atomic { X(2) -> A(2) }
#elif P == 4
#define ANY(X) (X(0) || X(1) || X(2) || X(3))
#define EACH(X,A) :: atomic { X(0) -> A(0) } :: atomic { X(1) -> A(1) } :: atomic { X(2) -> A(2) } :: atomic { X(3) -> A(3) }
#endif
#if N == 2
#define ANY_RANK(X) (X(0) || X(1))
#define EACH_RANK(X,A) :: atomic { X(0) -> A(0) } :: atomic { X(1) -> A(1) }
#elif N == 3
#define ANY_RANK(X) (X(0) || X(1) || X(2))
#define EACH_RANK(X,A) :: atomic { X(0) -> A(0) } :: atomic { X(1) -> A(1) } :: atomic { X(2) -> A(2) }
#endif
#define UNSEEN(j) (!(ok & (1<<j)))
#define SEE(j)    ok = ok | (1<<j)
#define GONE      (c_e != e)
#define SAW(op)   (c_e == e && c_q == q && c_op == op)
#define MAY_FAIL  (fails < FAILS)
#define MAY_DIE   (rcrash < RCRASH)

/* states/view.py */
#ifdef M_STEP_WITHOUT_EPOCH
#define SAME_EPOCH(j) true
#else
#define SAME_EPOCH(j) (w_e[j] == e)
#endif
#ifdef M_RUNNING_WITHOUT_SEQUENCE
#define FINISHED(j) false
#else
#define FINISHED(j) (q != 0 && w_k[j] != PARKED && w_q[j] >= q)
#endif
#define LATER(j)  (SAME_EPOCH(j) && w_n[j] > n && !FINISHED(j))
#define PAST(j)   (SAME_EPOCH(j) && FINISHED(j))
#define CRACKED(j) (w_e[j] == e && w_k[j] == BROKEN)
#ifdef M_STEP_WITHOUT_EPOCH
#define MAY_STEP  (!broken && !ANY_RANK(CRACKED))
#else
#define MAY_STEP  (have && !broken && !ANY_RANK(CRACKED))
#endif
#define BEHIND    (MAY_STEP && ANY_RANK(LATER))
#define STANDS(j) (UNSEEN(j) && w_e[j] == e && w_q[j] == q && w_k[j] == PARKED && w_n[j] == n)

/* states/view.py */
#define MINE(j)   (t_e[j] == e && t_q[j] == q)
#define READY(j)  (UNSEEN(j) && MINE(j) && t_r[j] >= 1)
#define NEVER(j)  (MINE(j) && t_c[j] >= FAILED && t_r[j] < 1)
#define STOPPED(j) (UNSEEN(j) && MINE(j) && t_c[j] >= STOPPED_UNTOUCHED)
#ifdef M_FAULTED_IS_UNTOUCHED
#define TOUCHED(j) (t_c[j] == STOPPED_TOUCHED || t_c[j] == DONE_CLEARED)
#else
#ifdef M_CLEARED_IS_UNTOUCHED
#define TOUCHED(j) (t_c[j] == STOPPED_TOUCHED || t_c[j] == DONE_FAULTED)
#else
#define TOUCHED(j) (t_c[j] == STOPPED_TOUCHED || t_c[j] == DONE_CLEARED || t_c[j] == DONE_FAULTED)
#endif
#endif
#define SEE_STOPPED(j) SEE(j); any = any || TOUCHED(j)

/* states/decide.py */
#define CURRENT(j) (t_e[j] == c_e && t_q[j] == c_q)
#ifdef M_HELPER_NOT_ASKED
#define PREPARES(j) (IS_OPEN && UNSEEN(j) && (j >= N || (CURRENT(j) && t_c[j] == PREPARED)))
#else
#define PREPARES(j) (IS_OPEN && UNSEEN(j) && CURRENT(j) && t_c[j] == PREPARED)
#endif
#define FAILS_(j) (CURRENT(j) && t_c[j] >= FAILED && t_c[j] <= STOPPED_TOUCHED)
#define ENDED(j)  (UNSEEN(j) && (c_op == NONE -> t_e[j] == c_e : (CURRENT(j) && t_c[j] >= DONE_KEPT)))
#define DEAD(j)   (died[j] == c_e)       /* in this epoch: a death is answered by one new epoch, not by one per look */
#define RAISED(j) (w_e[j] == c_e && w_k[j] == BROKEN)
#define LOST      (ANY(DEAD) || ANY_RANK(RAISED))
#define IS_COMMIT (c_op == COMMIT || c_op == HOT_COMMIT)
#define IS_OPEN   (c_op == CLEAR || c_op == UPDATE || c_op == HOT_UPDATE)
#define RECORDED  (!IS_COMMIT || k_q == c_q)
#if N == 2
#define RANKS_AGREE (t_v[0] == t_v[1])
#else
#define RANKS_AGREE (t_v[0] == t_v[1] && t_v[1] == t_v[2])
#endif

#define UNPREPARED(j) (!(CURRENT(j) && t_c[j] == PREPARED))
#if HELD
#define IS_UPDATE (c_op == UPDATE || c_op == HOT_UPDATE)
#ifdef M_LEASE_HAS_NO_END
#define LEASE_HOLDS (IS_OPEN && c_d == LEASED && !ANY(UNPREPARED) && RANKS_AGREE && !LOST)
#else
#define LEASE_HOLDS (IS_OPEN && c_d == LEASED && !ANY(UNPREPARED) && RANKS_AGREE && !LOST && !expired)
#endif
#ifdef M_SUCCESSOR_COMMITS_FOR_CALLER
#define MAY_COMMIT (c_d == CONTROLLER || (c_d == CALLER && (heir || (told && !silent))))
#else
#ifdef M_CALLER_IS_NOT_ASKED
#define MAY_COMMIT (c_d == CONTROLLER || c_d == CALLER)
#else
#define MAY_COMMIT (c_d == CONTROLLER || (c_d == CALLER && told && !heir && !silent))
#endif
#endif
#define MAY_DECIDE (MAY_COMMIT || !RANKS_AGREE)
#ifdef M_NEXT_CONTROLLER_ENDS_LEASE
#define MAY_ABORT true
#else
#define MAY_ABORT (!LEASE_HOLDS)
#endif
#else
#define MAY_COMMIT true
#define MAY_DECIDE true
#define MAY_ABORT true
#endif

/* A status word of this sequence: never less than the last one, but that a hot commit's park follows PREPARED. */
inline say(code) {
  assert(t_e[me] != e || t_q[me] != q || code >= t_c[me] || (code == PARKING && op == HOT_COMMIT));
  t_e[me] = e; t_r[me] = (t_q[me] == q -> t_r[me] : 0); t_q[me] = q; t_c[me] = code
}

inline decide(word) {
  assert(decided[c_q] == 0);
#if HELD
  assert((word != COMMIT && word != HOT_COMMIT) || (c_d != CALLER && c_d != LEASED) || wish);
  assert(!expired || !ANY(UNPREPARED));                 /* a lease counts from there on */
  assert(c_d != LEASED || ANY(UNPREPARED) || !RANKS_AGREE || wish || expired || LOST);     /* what it holds is its caller's */
#endif
  decided[c_q] = word; c_op = word; ok = 0;
  if :: word == COMMIT || word == HOT_COMMIT -> committed = t_v[0] :: else fi
}

inline abort() { if :: c_op == HOT_UPDATE -> decide(HOT_ABORT) :: else -> decide(ABORT) fi }
inline commit() { if :: c_op == UPDATE -> decide(COMMIT) :: else -> decide(HOT_COMMIT) fi }

#if HELD
inline begin_held() { c_d = CONTROLLER; told = false; expired = false }
#endif

active proctype Controller() {
  byte ok; bool heir;
#if ALONE
  byte due, due_q, due_e;
#endif
look:
  do
#if LOSSES
  :: losses < LOSSES -> atomic { losses++; ok = 0; heir = false; gone = true; role = FREE; goto end_gone }
#endif
#if STOPS
  :: atomic { stops < STOPS && IS_OPEN ->               /* it has made up its mind, perhaps, and written nothing yet */
       stops++; frozen = true; due_q = c_q; due_e = c_e; due = NONE;
       if
       :: c_op != CLEAR && ok == ALL && RANKS_AGREE && MAY_COMMIT -> due = (c_op == UPDATE -> COMMIT : HOT_COMMIT)
       :: MAY_ABORT && (gives_up || heir || ANY(DEAD) || ANY(FAILS_)) -> due = (c_op == HOT_UPDATE -> HOT_ABORT : ABORT)
       :: due = NONE
       fi };
     goto end_stopped
#endif
  :: ccrash < CCRASH ->                                 /* all that it knew is lost; the words are not */
takeover: atomic { ccrash++; ok = 0; heir = true;
#ifdef M_TAKEOVER_DECIDES_AGAIN
       if :: c_op == NONE :: c_op != NONE && c_op != CLEAR && !(CURRENT(0) && t_c[0] == PREPARED && CURRENT(1) && t_c[1] == PREPARED) -> abort()
          :: else fi
#endif
     }
  :: LOST -> goto recover                               /* the group's owner may be faster than its controller */
  EACH(PREPARES, SEE)
  :: atomic { (c_op == UPDATE || c_op == HOT_UPDATE) && ok == ALL && MAY_DECIDE ->
       if
#ifndef M_COMMIT_UNSEEN
       :: !RANKS_AGREE -> abort()
#endif
#if HELD
       :: else -> wish = told && !heir; commit(); wish = false
#else
       :: else -> commit()
#endif
       fi }
#if HELD
  :: atomic { IS_UPDATE && (c_d == CALLER || c_d == LEASED) && ok == ALL && RANKS_AGREE && !told && !heir ->
       told = true }                                    /* prepare() returns */
  :: atomic { IS_UPDATE && c_d == CALLER && told && !silent -> abort() }
#ifndef M_LEASE_HAS_NO_END
  :: atomic { IS_UPDATE && c_d == CALLER && expired -> abort() }
#endif
  :: atomic { IS_UPDATE && c_d == LEASED && told && !heir -> role = FREE; ok = 0; goto end_leased }
#ifndef M_NEXT_CONTROLLER_ENDS_LEASE
  :: atomic { heir && LEASE_HOLDS -> role = FREE; ok = 0; heir = false; goto end_leased }     /* it is told Busy */
#endif
  :: atomic { killed -> killed = false; ok = 0; heir = false; gone = true; role = FREE; goto end_gone }
#endif
#ifdef M_CLEAR_IS_NEVER_DECIDED
  :: atomic { IS_OPEN && c_op != CLEAR && MAY_ABORT && (gives_up || heir || ANY(DEAD) || ANY(FAILS_)) -> abort() }
#else
  :: atomic { IS_OPEN && MAY_ABORT && (gives_up || heir || ANY(DEAD) || ANY(FAILS_)) -> abort() }
#endif
  :: atomic { IS_COMMIT && k_q != c_q -> k_q = c_q; k_v = committed }
  EACH(ENDED, SEE)
#ifdef M_NEXT_COMMAND_EARLY
  :: atomic { !IS_OPEN && RECORDED && (c_op != NONE || ok == ALL) ->
#else
  :: atomic { (c_op == NONE || c_op == CLEAR || !IS_OPEN) && ok == ALL && RECORDED ->
#endif
       ok = 0; heir = false;
       if
       :: c_op == NONE && c_e > 1 -> c_q++; c_op = UPDATE; c_v = k_v;     /* what restores the group is an ordinary command */
#if HELD
          begin_held()
#endif
       :: !(c_op == NONE && c_e > 1) && cmds < CMDS -> cmds++; c_q++; c_v = c_q + 1;
          if :: OPS & 1 -> c_op = CLEAR :: OPS & 2 -> c_op = UPDATE :: OPS & 4 -> c_op = HOT_UPDATE fi;
#if HELD
          begin_held();
          if
          :: DECIDERS & 1 || c_op == CLEAR
          :: DECIDERS & 2 && c_op != CLEAR -> c_d = CALLER
          :: DECIDERS & 4 && c_op != CLEAR -> c_d = LEASED
          fi
#endif
       :: else -> over = true; goto end_over
       fi }
  od;
end_over:
  if
  :: atomic { LOST -> over = false }
  :: atomic { ccrash < CCRASH -> over = false; goto takeover }
  fi;
recover:
#ifndef M_EPOCH_LOSES_COMMIT
  if :: atomic { IS_COMMIT && k_q != c_q -> k_q = c_q; k_v = committed } :: else fi;
#endif
  if :: ccrash < CCRASH -> goto takeover :: skip fi;
  atomic { assert(k_v == committed); c_e++; c_op = NONE; ok = 0; heir = false };
  goto look;
#if ALONE
end_gone:
  if
  :: atomic { LOST && role == FREE -> role = CONTROLLERS; gone = false; goto recover }   /* the owner of the group */
  :: atomic { role == FREE && cmds < CMDS -> role = CONTROLLERS; gone = false; heir = true; goto look }
  fi;
#endif
#if HELD
end_leased:                                             /* no process has the role */
  if
  :: atomic { role == FREE && LOST -> role = CONTROLLERS; goto recover }
  :: atomic { role == FREE && IS_OPEN && !silent -> role = CONTROLLERS };              /* the caller's next process */
     if
     :: atomic { IS_OPEN && !ANY(UNPREPARED) -> wish = true; commit(); wish = false }
     :: atomic { IS_OPEN -> wish = true; abort(); wish = false }
     :: !IS_OPEN
     fi;
     goto look
  :: atomic { role == FREE && !IS_OPEN -> role = CONTROLLERS; goto look }              /* any controller's: until then Busy */
#ifdef M_NEXT_CONTROLLER_ENDS_LEASE
  :: atomic { role == FREE && IS_OPEN -> role = CONTROLLERS; heir = true; goto look }
#endif
  fi;
#endif
#if STOPS
end_stopped:                                            /* it may stay so for ever */
  if
  :: atomic { stops < STOPS -> stops++; frozen = false;  /* it goes on, and stores what it had in mind */
       if
#if HELD
       :: due != NONE -> assert(c_q == due_q && c_e == due_e); wish = told || due == ABORT || due == HOT_ABORT;
          if :: IS_OPEN -> decide(due) :: else -> assert(c_op == due) fi; wish = false
#else
       :: due != NONE -> assert(c_q == due_q && c_e == due_e); if :: IS_OPEN -> decide(due) :: else -> assert(c_op == due) fi
#endif
       :: else
       fi;
       due = NONE; due_q = 0; due_e = 0; goto look }
  :: atomic { killed || losses < LOSSES -> losses = losses + !killed; killed = false; ok = 0; heir = false; frozen = false;
       due = NONE; due_q = 0; due_e = 0; gone = true; role = FREE; goto end_gone }
  fi;
#endif
  skip
}

#if ALONE
/* A thread of a rank, or the supervisor: what states/decide.py says of a command whose controller does not come back. */
#define UNENDED(j) (!(CURRENT(j) && t_c[j] >= DONE_KEPT))
#ifdef M_KEEPER_FORGETS_VERSION
#define LACKS_A_WORD (IS_OPEN && (c_op != CLEAR || ANY(UNENDED)))
#else
#define LACKS_A_WORD ((IS_COMMIT && k_q != c_q) || (IS_OPEN && (c_op != CLEAR || ANY(UNENDED))))
#endif
#ifdef M_STOPPED_IS_OVERRULED
#define ONLY_ABORT_IS_LEFT IS_OPEN
#else
#ifdef M_LEASE_OVERRULES_STOPPED
#define ONLY_ABORT_IS_LEFT (IS_OPEN && (ANY(FAILS_) || expired))
#else
#define ONLY_ABORT_IS_LEFT (IS_OPEN && ANY(FAILS_))
#endif
#endif
#if HELD
#ifdef M_LEASE_IS_NOT_ASKED_AGAIN
#define KEPT_NOW false
#else
#define KEPT_NOW LEASE_HOLDS
#endif
#ifdef M_SUCCESSOR_COMMITS_FOR_CALLER
#define KEEPER_COMMITS (c_d == CONTROLLER || c_d == CALLER)
#else
#define KEEPER_COMMITS (c_d == CONTROLLER)
#endif
#else
#define KEPT_NOW false
#define KEEPER_COMMITS true
#endif

active proctype Keeper() {
  byte ok, q, e;
end_keeper:
  do
#ifndef M_NOBODY_KEEPS
#if HELD
  :: LACKS_A_WORD && !LEASE_HOLDS ->                    /* what it saw may be past when it has the role */
end_seen:
     atomic { role == FREE -> role = KEEPERS; ok = 0 };
#else
  :: atomic { role == FREE && LACKS_A_WORD -> role = KEEPERS; ok = 0 };
#endif
     do
     EACH(PREPARES, SEE)
     :: atomic { (c_op == UPDATE || c_op == HOT_UPDATE) && ok == ALL && KEEPER_COMMITS ->
          if :: !RANKS_AGREE -> abort() :: else -> commit() fi }
     :: atomic { IS_OPEN && LACKS_A_WORD && !KEPT_NOW -> abort() }
     :: atomic { IS_COMMIT && LACKS_A_WORD -> k_q = c_q; k_v = committed }
     :: atomic { !LACKS_A_WORD || KEPT_NOW -> role = FREE; ok = 0; break }
     :: atomic { ccrash < CCRASH -> ccrash++; role = FREE; ok = 0; break }   /* it dies too: the next one goes on */
     od
#endif
#ifdef M_STAND_IN_IS_LATE
  :: atomic { frozen && ONLY_ABORT_IS_LEFT -> q = c_q; e = c_e };
     atomic { assert(q == c_q && e == c_e); if :: IS_OPEN -> abort() :: else fi; q = 0; e = 0 }
#else
  :: atomic { frozen && ONLY_ABORT_IS_LEFT -> abort() }  /* no next command or epoch is written meanwhile */
#endif
  od
}
#endif

#if HELD
/* The clock of leases. */
active proctype World() {
end_world:
  do
#ifdef M_LEASE_COUNTS_FROM_START
  :: atomic { IS_OPEN && (c_d == CALLER || c_d == LEASED) && !expired -> expired = true }
#else
  :: atomic { IS_OPEN && (c_d == CALLER || c_d == LEASED) && !ANY(UNPREPARED) && !expired -> expired = true }
#endif
  od
}
#endif

/* One iteration of the loop with every collective in it. A rank that stays alone in a step raises, is interrupted, or is replaced. */
inline step() {
  atomic {
    n++; w_q[me] = done; w_k[me] = RUNNING; w_n[me] = n;
    assert(have != 0 && have != WRONG && !broken && !faulted);
    assert(served[AT] == 0 || served[AT] == have);
#if H
    if :: t_e[N] == e && died[N] != e -> assert(kv == EMPTY || kv == have); kv = have :: else fi;   /* else: the cache of another epoch */
#endif
    served[AT] = have; entered[AT]++
  }
  if
  :: entered[AT] == N && hole != AT + 1
  :: entered[AT] == N && hole != AT + 1 && breaks < BREAKS -> atomic { breaks++; broken = true; w_k[me] = BROKEN }
  :: hole != AT + 1 && breaks < BREAKS -> atomic { breaks++; hole = AT + 1; broken = true; w_k[me] = BROKEN }
  :: hole == AT + 1 -> atomic { broken = true; w_k[me] = BROKEN }
  :: GONE -> goto rejoin
  :: MAY_DIE -> goto dead
  fi
}

inline forget() { ok = 0; q = 0; op = NONE; got = 0; acc = false; touched = false; any = false; whole = false }

proctype Rank(byte me) {
  byte e = 1, n, have = 1, done, q, op, ok, got; bool acc, touched, any, broken, faulted, whole;

idle_: atomic { forget(); idle[me] = true; held[me] = have; faulty[me] = faulted; hurt[me] = broken };
end_idle:
  if
  :: GONE -> goto rejoin
  :: atomic { !GONE && c_q > done -> q = c_q; op = c_op; idle[me] = false; ok = 1 << me };
     if
     :: op == ABORT -> goto stopping
     :: op == HOT_ABORT -> goto settling
     :: op == CLEAR || op == UPDATE || op == HOT_UPDATE -> goto beginning
     fi                                                 /* a commit of what it never prepared: an invalid end */
  :: have && MAY_STEP && n < wmax -> idle[me] = false; step(); goto idle_
  :: BEHIND -> idle[me] = false; step(); goto idle_
  :: MAY_DIE -> goto dead
  fi;

beginning:
  if
  :: GONE -> goto rejoin
  :: SAW(ABORT) -> goto stopping
  :: SAW(HOT_ABORT) -> goto settling
  :: BEHIND -> step(); goto beginning
#ifdef M_FAULTED_UPDATES
  :: atomic { !broken && (op != HOT_UPDATE || have) ->
#else
  :: atomic { !broken && (!faulted || op == CLEAR) && (op != HOT_UPDATE || have) ->
#endif
       say(DRAINING); if :: op == HOT_UPDATE -> goto staging :: else -> goto draining fi }
  :: atomic { broken || (faulted && op != CLEAR) || (op == HOT_UPDATE && !have) -> say(REFUSED) }; goto refused
  :: atomic { MAY_FAIL -> fails++; say(REFUSED) }; goto refused     /* a policy that it cannot honour */
  :: atomic { MAY_FAIL -> fails++; say(FAILED) }; goto failed       /* arguments that never came */
  :: MAY_DIE -> goto dead
  fi;

staging:
  do
  :: GONE -> goto rejoin
  :: SAW(HOT_ABORT) -> goto settling
  :: BEHIND -> step()
  :: have && MAY_STEP && n < wmax -> step()
  :: atomic { true -> got = c_v; t_v[me] = c_v; say(PREPARED) }; break
  :: atomic { misreads < MISREADS -> misreads++; got = WRONG; t_v[me] = WRONG; say(PREPARED) }; break
  :: atomic { MAY_FAIL -> fails++; say(FAILED) }; goto failed
  :: MAY_DIE -> goto dead
  od;

staged:
  do
  :: GONE -> goto rejoin
  :: SAW(HOT_ABORT) -> goto settling
#ifdef M_HOT_FLIP_WITHOUT_PARKING
  :: SAW(HOT_COMMIT) -> goto committing
#else
  :: SAW(HOT_COMMIT) -> op = HOT_COMMIT; break
#endif
  :: BEHIND -> step()
  :: have && MAY_STEP && n < wmax -> step()
  :: MAY_DIE -> goto dead
  od;

draining:
  do
  :: GONE -> goto rejoin
  :: SAW(ABORT) -> goto stopping
  :: BEHIND -> step()
  :: have && MAY_STEP && n < wmax -> step()
#ifdef M_BROKEN_PARKS
  :: break
#else
  :: !broken -> break                                   /* a broken rank stands nowhere: it waits, as in a deadline */
#endif
  :: atomic { op != HOT_COMMIT && MAY_FAIL -> fails++; say(FAILED) }; goto failed
  :: MAY_DIE -> goto dead
  od;

parking:
  atomic { w_q[me] = q; w_k[me] = PARKED; w_n[me] = n; say(PARKING); ok = 1 << me };
  do
  :: GONE -> goto rejoin
#ifdef M_ABORT_RESUMES
  :: atomic { SAW(ABORT) -> say(DONE_KEPT); done = q }; goto idle_
#else
  :: SAW(ABORT) -> goto stopping
#endif
#ifndef M_NO_JOIN_IN_PARKING
  :: BEHIND -> step(); if :: broken -> goto draining :: else -> goto parking fi
#endif
  EACH_RANK(STANDS, SEE)
  :: ok == ALL_RANKS -> break
#ifndef M_COMMIT_DOES_NOT_FOLLOW
  :: op == HOT_COMMIT && ANY_RANK(PAST) -> break
#endif
#ifdef M_DEADLINE_UNPARKS
  :: atomic { op != HOT_COMMIT && MAY_FAIL -> fails++; say(DONE_KEPT); done = q }; goto idle_
#else
  :: atomic { op != HOT_COMMIT && MAY_FAIL -> fails++; say(FAILED) }; goto failed
#endif
  :: MAY_DIE -> goto dead
  od;
  if :: op == HOT_COMMIT -> goto committing :: else fi;
  atomic { acc = true; ok = 0; whole = have != 0; touched = (op == CLEAR && (have || faulted)); say(ACCEPTED) };

working:                                                /* the actions in front of the collective one */
  if
  :: GONE -> goto rejoin
  :: SAW(ABORT) -> goto stopping
  :: op == UPDATE -> skip
  :: atomic { op == CLEAR -> have = 0; faulted = false }
  :: atomic { MAY_FAIL && (op == UPDATE || touched) -> fails++; if :: op == CLEAR -> have = 0; faulted = true :: else fi; say(FAILED) };
     goto failed
  :: MAY_DIE -> goto dead
  fi;
  if
  :: op == CLEAR && !(CLEARVOTE && whole) -> goto finishing
  :: op == UPDATE || (CLEARVOTE && whole) -> skip
  :: SAW(ABORT) -> goto stopping
  :: GONE -> goto rejoin
  :: MAY_DIE -> goto dead
  fi;
  atomic { say(VOTED); t_r[me] = 1; ok = 1 << me };

voting:
  do
  :: GONE -> goto rejoin
  EACH_RANK(READY, SEE)
#ifdef M_HELPER_IS_WAITED_FOR
  :: (ok & ALL_RANKS) == ALL_RANKS && READY(N) -> break
#else
  :: ok == ALL_RANKS -> break
#endif
  :: atomic { ANY_RANK(NEVER) -> say(FAILED) }; goto failed
#ifdef M_VOTE_IS_WITHDRAWN
  :: SAW(ABORT) -> goto stopping
#endif
  :: MAY_DIE -> goto dead
  od;
  met[q]++;                                             /* a collective: a rank in it stays until all are */
  if :: met[q] == N :: GONE -> goto rejoin :: MAY_DIE -> goto dead fi;
  if
  :: op == CLEAR -> skip
  :: op == UPDATE -> atomic { touched = true; have = 0 }            /* in place */
  :: op == UPDATE && whole -> skip                                  /* beside the old ones */
  :: atomic { MAY_FAIL -> fails++; if :: op == CLEAR -> faulted = true :: else fi;
       say(FAILED) }; goto failed
  :: SAW(ABORT) -> goto stopping
  :: GONE -> goto rejoin
  :: MAY_DIE -> goto dead
  fi;

finishing:
  if
  :: atomic { op == CLEAR -> say(DONE_CLEARED); done = q }; goto idle_
  :: atomic { op == UPDATE -> got = c_v; t_v[me] = c_v; say(PREPARED) }
  :: atomic { op == UPDATE && misreads < MISREADS -> misreads++; got = WRONG; t_v[me] = WRONG; say(PREPARED) }
  :: atomic { MAY_FAIL && op == UPDATE -> fails++; say(FAILED) }; goto failed
  :: SAW(ABORT) -> goto stopping
  :: GONE -> goto rejoin
  :: MAY_DIE -> goto dead
  fi;

prepared:
  if
  :: GONE -> goto rejoin
  :: SAW(COMMIT) -> goto committing
  :: SAW(ABORT) -> goto stopping
#ifdef M_DEADLINE_ENDS_PREPARED
  :: atomic { MAY_FAIL -> fails++; say(FAILED) }; goto failed
#endif
  :: MAY_DIE -> goto dead
  fi;

committing:
  if
  :: atomic { op == HOT_COMMIT && breaks < BREAKS -> breaks++; broken = true; w_q[me] = done; w_k[me] = BROKEN; have = WRONG };
     if :: GONE -> goto rejoin :: MAY_DIE -> goto dead fi           /* a flip that broke is not tried again */
  :: atomic {
       assert(decided[q] == COMMIT || decided[q] == HOT_COMMIT); assert(got == committed);
       have = got; done = q; say(DONE_COMMITTED);
#if H
       if :: op == HOT_COMMIT && t_e[N] == e && kv != have && kv != 0 -> kv = EMPTY :: else fi
#endif
     }
  fi;
  goto idle_;

refused:
#ifdef M_REFUSAL_IS_TERMINAL
  atomic { say(DONE_KEPT); done = q }; goto idle_;
#endif
failed:                                                 /* stays: only a decision or a new epoch leads out */
  do
  :: GONE -> goto rejoin
  :: SAW(ABORT) -> goto stopping
  :: SAW(HOT_ABORT) -> goto settling
  :: !acc && BEHIND -> step()
  :: op == HOT_UPDATE && have && MAY_STEP && n < wmax -> step()
  :: MAY_DIE -> goto dead
  od;

stopping:                                               /* no rank serves before all have stopped; one outcome for all */
  atomic { assert(decided[q] == ABORT); ok = 1 << me; any = touched || faulted;
    if :: any -> say(STOPPED_TOUCHED) :: else -> say(STOPPED_UNTOUCHED) fi };
stopped:
  do
  :: GONE -> goto rejoin
#ifndef M_NO_JOIN_WHEN_STOPPED
  :: !acc && BEHIND -> step()
#endif
#ifdef M_OUTCOME_IS_LOCAL
  :: break
#else
  EACH(STOPPED, SEE_STOPPED)
  :: ok == ALL -> break
#endif
  :: MAY_DIE -> goto dead
  od;

settling:
  if
  :: GONE -> goto rejoin
  :: atomic { !any -> say(DONE_KEPT); done = q }
  :: atomic { any -> have = 0; faulted = false; say(DONE_CLEARED); done = q }
  :: atomic { any && MAY_FAIL && (have || touched || faulted) -> fails++; have = 0; faulted = true; say(DONE_FAULTED); done = q }
  :: MAY_DIE -> goto dead
  fi;
  goto idle_;

dead:
  atomic { rcrash++; died[me] = e; idle[me] = false; forget(); have = 0; n = 0; done = 0; held[me] = 0; broken = false;
           faulted = false; faulty[me] = false };
#ifdef M_SAME_EPOCH_RESTART
  if :: c_e > e :: atomic { w_q[me] = 0; w_k[me] = PARKED; w_n[me] = 0; t_q[me] = 0; t_c[me] = ATTACHED; died[me] = 0; done = c_q - (c_op != NONE) };
  goto idle_ fi;
#else
  (c_e > e);                                            /* a replacement joins only an epoch that its slot never used */
#endif
rejoin:
  atomic { idle[me] = false; forget(); e = c_e; done = c_q - (c_op != NONE); n = 0; have = 0; broken = false; faulted = false };
#ifdef M_STEP_WITHOUT_EPOCH
  w_e[me] = e;
#else
  atomic { w_e[me] = e; w_q[me] = 0; w_k[me] = PARKED; w_n[me] = 0 };
#endif
  atomic { t_e[me] = e; t_q[me] = 0; t_c[me] = ATTACHED; t_r[me] = 0; died[me] = 0 };
  goto idle_
}

#if H
/* A KV-cache process. It never parks: that a rank accepted, or voted, proves to it that all ranks stand; that one has flipped
   proves that no rank steps with the old weights any more. */
#define FLIPPED(j) (MINE(j) && t_c[j] == DONE_COMMITTED)
#define STEPS_ON(j) (died[j] != e && w_e[j] == e && w_q[j] < q)
#define ACCEPTS(j) (MINE(j) && (t_r[j] || t_c[j] == ACCEPTED || t_c[j] == VOTED || t_c[j] == PREPARED || t_c[j] == DONE_CLEARED))

proctype Helper(byte me) {
  byte e = 1, done, q, op, ok; bool touched, any;

idle_: atomic { ok = 0; q = 0; op = NONE; touched = false; any = false; idle[me] = true };
end_idle:
  if
  :: GONE -> goto rejoin
  :: atomic { !GONE && c_q > done -> q = c_q; op = c_op; idle[me] = false };
     if
     :: op == ABORT -> goto stopping
     :: op == HOT_ABORT -> goto settling
     :: op == CLEAR || op == UPDATE -> atomic { say(DRAINING) }
     :: op == HOT_UPDATE -> atomic { t_v[me] = c_v; say(PREPARED) }; goto prepared
     fi
  :: MAY_DIE -> goto dead
  fi;

waiting:
  if
  :: GONE -> goto rejoin
  :: SAW(ABORT) -> goto stopping
#ifdef M_HELPER_IS_EARLY
  :: skip
#else
  :: ANY_RANK(ACCEPTS) -> skip
#endif
  :: atomic { MAY_FAIL -> fails++; say(FAILED) }; goto failed
  :: MAY_DIE -> goto dead
  fi;
  if
  :: atomic { op == CLEAR && MAY_FAIL && kv != 0 -> fails++; touched = true; kv = 0; say(FAILED) }; goto failed
  :: atomic { op == CLEAR -> touched = (kv != 0); kv = 0 };
     atomic { say(DONE_CLEARED); done = q }; goto idle_
  :: atomic { op == UPDATE -> kv = EMPTY }
  :: atomic { MAY_FAIL -> fails++; say(FAILED) }; goto failed
  :: GONE -> goto rejoin
  :: SAW(ABORT) -> goto stopping
  :: MAY_DIE -> goto dead
  fi;
  if
  :: atomic { t_v[me] = c_v; say(PREPARED) }
  :: atomic { MAY_FAIL -> fails++; say(FAILED) }; goto failed
  :: GONE -> goto rejoin
  :: MAY_DIE -> goto dead
  fi;

prepared:
  if
  :: GONE -> goto rejoin
  :: atomic { SAW(COMMIT) -> say(DONE_COMMITTED); done = q }; goto idle_
#ifdef M_HELPER_FOLLOWS_AT_ONCE
  :: atomic { SAW(HOT_COMMIT) -> assert(!ANY_RANK(STEPS_ON)); say(DONE_COMMITTED); done = q }; goto idle_
#else
  :: atomic { SAW(HOT_COMMIT) && ANY_RANK(FLIPPED) -> assert(!ANY_RANK(STEPS_ON)); say(DONE_COMMITTED); done = q }; goto idle_
#endif
  :: SAW(ABORT) -> goto stopping
  :: SAW(HOT_ABORT) -> goto settling
  :: MAY_DIE -> goto dead
  fi;

failed:
  if :: GONE -> goto rejoin :: SAW(ABORT) -> goto stopping :: MAY_DIE -> goto dead fi;

stopping:
  atomic { ok = 1 << me; any = touched; if :: touched -> say(STOPPED_TOUCHED) :: else -> say(STOPPED_UNTOUCHED) fi };
  do
  :: GONE -> goto rejoin
  EACH(STOPPED, SEE_STOPPED)
  :: ok == ALL -> break
  :: MAY_DIE -> goto dead
  od;

settling:
  if
  :: GONE -> goto rejoin
  :: atomic { !any -> say(DONE_KEPT); done = q }
  :: atomic { any -> kv = 0; say(DONE_CLEARED); done = q }
  :: MAY_DIE -> goto dead
  fi;
  goto idle_;

dead:
  atomic { rcrash++; died[me] = e; idle[me] = false; kv = 0; ok = 0; q = 0; op = NONE; touched = false; any = false };
  (c_e > e);
rejoin:
  atomic { idle[me] = false; ok = 0; q = 0; op = NONE; touched = false; any = false; e = c_e; done = c_q - (c_op != NONE) };
  atomic { kv = 0; t_e[me] = e; t_q[me] = 0; t_c[me] = ATTACHED; t_r[me] = 0; died[me] = 0 };
  goto idle_
}
#endif

#ifdef M_SPLIT_BRAIN             /* a controller that was only stopped goes on after its successor took over */
active proctype Stopped() {
  byte q;
  atomic { c_op == UPDATE && CURRENT(0) && CURRENT(1) && t_c[0] == PREPARED && t_c[1] == PREPARED -> q = c_q };
end_stopped:
  atomic { c_op == ABORT && ccrash > 0 -> c_q = q; c_op = COMMIT }
}
#endif

init {
  byte i;
  atomic {
    select(rcrash : 0 .. RCRASH); select(ccrash : 0 .. CCRASH); select(fails : 0 .. FAILS); select(breaks : 0 .. BREAKS);
    select(wmax : 0 .. WORK);
    if :: gives_up = true :: gives_up = false fi;
#if HELD
    if :: silent = true :: silent = false fi;
#endif
    for (i : 0 .. P-1) { t_e[i] = 1; t_c[i] = ATTACHED; idle[i] = true }
    for (i : 0 .. N-1) { w_e[i] = 1; w_k[i] = RUNNING; held[i] = 1; run Rank(i) }
#if H
    run Helper(N);
#endif
    i = 0
  }
  timeout;                                              /* nothing can move any more: is every participant where it should be? */
#if ALONE
  if
  :: frozen ->                                          /* it is named, since it may be about to write COMMIT, or since only a */
    assert(LOST || !LACKS_A_WORD || !ANY(UNPREPARED));  /* new epoch leads on, which needs the role; nothing else waits for it */
    killed = true;
    timeout
  :: else
  fi;
  assert((over || gone) && RECORDED && !LACKS_A_WORD && role == (gone -> FREE : CONTROLLERS));
#else
  assert(over);
#endif
  for (i : 0 .. P-1) { assert(died[i] == 0 && idle[i]) }
  for (i : 0 .. N-1) { assert(held[i] == held[0]); assert(held[i] == 0 || (held[i] == committed && !faulty[i])); assert(!hurt[i]) }
}
