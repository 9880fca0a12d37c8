/* What a group must hold once its epoch has ended, as src/wsm/states/epochs.py and src/wsm/controller/recovery.py have it.

   SHOWS    that what is to be restored outlives the process that raises the epoch, and a second death before it is restored: all that a
            successor knows is in the words and in the arguments of the last command.
   HOLDS    in every state: no rank serves but what was committed last; an epoch ends with the goal that an observer of all would
            name (`owed`), and nothing else is restored.
            in every end: all ranks are idle in the same epoch, and all hold what is owed: the version that was decided last,
            nothing after a clear or an abort that all came to the end of, what they held before a command that was cut short.
            Admission, beside that: an idle rank is HELD exactly where a hold was decided last (`closed`), so none steps between the
            word of `hold` and that of `release`, whatever died; hold and release change no version, and take no debt away.
            The record that the committed word names is there, whichever process died between the two.
   MEASURED by `make models`, spin 6.5.2: bounds, states, what for
     defaults                                        51,165  a death at any point of a command
     RCRASH=2 FAILS=1 OPS=3                         388,599  a second death before the restore has ended
     RCRASH=2 CCRASH=1 CMDS=2 OPS=3               1,326,529  the process that raises the epoch dies too
     RCRASH=2 CCRASH=1 OPS=3, any cycle             751,927  no endless run
     CCRASH=1 CMDS=2 LEASES=1 OPS=4                 549,167  hold, release, a lease that runs out
     RCRASH=2 LEASES=1 OPS=12                       598,155  updates under a hold, and such that hold or serve
     RCRASH=2 CCRASH=2 CMDS=2 FAILS=1 OPS=3       8,135,890  more of everything
     RCRASH=2 CCRASH=2 CMDS=2 OPS=4               2,250,641  two die before their words
     RCRASH=2 CCRASH=1 CMDS=2 LEASES=1           36,141,618  everything under a hold
     CCRASH=1 CMDS=2 LEASES=1 FAILS=1, any cycle    38,189,519  no endless run
   READING  A look at all words is atomic: transaction.pml has the stale ones.
   ASSUMED  The group's owner kills and reaps before it begins the epoch. All who take the controller role, one after the
            other, are one process here. A restore that fails and is aborted to its end is a command like any other: it is
            reported, and leaves a group that is owed nothing.
   NOT      modelled: steps and parking, hot update, halves of the state (tags), FAULTED, helpers.
   MUTANTS  -DM_NAME drops one rule; each is caught within the bounds that models/catalogue.py names.
*/
#ifndef CMDS
#define CMDS 1           /* commands, the updates that restore and the end of a lease not counted */
#endif
#ifndef OPS
#define OPS 15           /* 1 clear, 2 update, 4 hold and release, 8 an update that holds or serves (`after`) */
#endif
#ifndef LEASES
#define LEASES 0         /* leases of holds that run out */
#endif
#ifndef RCRASH
#define RCRASH 1         /* deaths of ranks */
#endif
#ifndef CCRASH
#define CCRASH 0         /* deaths of the controller role's holder, at any point between two stores */
#endif
#ifndef FAILS
#define FAILS 0          /* actions that fail */
#endif
#define N 2              /* ranks */

#define NONE 0
#define CLEAR 1
#define UPDATE 2
#define COMMIT 3
#define ABORT 4
#define HOLD 5
#define RELEASE 6
#define ATTACHED 0
#define WORKING 1
#define PREPARED 2
#define FAILED 3
#define STOPPED 4
#define STOPPED_TOUCHED 5
#define DONE 6           /* kept, cleared or committed: `s_holds` says which */

byte c_e = 1, c_q, c_op = NONE;                        /* command */
byte k_q, k_v = 1; bool k_held;                        /* committed; 0: nothing is to be served; k_v is the id of a version */
byte r_q[2], r_v[2]; bool r_held[2];                   /* the record, two slots: what the word has no room for, and its key */
byte a_e[2], a_q[2], a_v[2];                           /* arguments, two slots: version, */
bool a_served[2], a_held[2], a_of_admission[2];        /* whether the group was to serve, is HELD after it, and it moves no memory */
byte s_e[N], s_q[N], s_c[N]; bool s_holds[N];          /* status */

byte memory[N], final = 1, owed = 1, versions = 1, rcrash, ccrash, fails, cmds; bool dead[N], idle[N], over;
bool held[N], closed, wanted, expired; byte leases;    /* admission: of each rank, as decided last, as asked last; a lease ran out */

#define MINE(j)     (s_e[j] == c_e && s_q[j] == c_q)
#define AT(j, code) (MINE(j) && s_c[j] == code)
#define BOTH(code)  (AT(0, code) && AT(1, code))
#define JOINED      (s_e[0] == c_e && s_e[1] == c_e)
#define LOST(j)     (dead[j] && s_e[j] == c_e)         /* died before it joined: replaced in the same epoch */
#define UNDECIDED   (c_op == UPDATE || OPENED || (c_op == CLEAR && !BOTH(DONE)))
#define OVER        ((c_op == NONE && JOINED) || (BOTH(DONE) && (c_op != COMMIT || k_q == c_q)))
#define THERE(q)    (a_e[(q) % 2] == c_e && a_q[(q) % 2] == (q))
#define HOLDS       (s_holds[0] || s_holds[1])
#define WHOLE       (s_holds[0] && s_holds[1])
#define OPENED      (c_op == HOLD || c_op == RELEASE)
#define ADMISSION   ((c_op == COMMIT || c_op == ABORT) && THERE(c_q) && a_of_admission[c_q % 2])
#ifdef M_HOLD_TAKES_DEBT
#define UNRESTORED  (c_op == NONE && k_v && !HOLDS)
#else
#define UNRESTORED  ((c_op == NONE || (ADMISSION && a_served[c_q % 2])) && k_v && !HOLDS)
#endif
#define AFTER       a_held[c_q % 2]
#define LAPSED      (expired && k_held)
#define NAMED(p)    (r_q[p] == k_q && r_v[p] == k_v && r_held[p] == k_held)
#define KNOWN       (NAMED(0) || NAMED(1) || (!k_v && !k_held))

inline decide() {
  if
#ifdef M_SUCCESSOR_HOLDS
  :: OPENED && BOTH(PREPARED) ->
#else
  :: OPENED && BOTH(PREPARED) && caller ->
#endif
     assert(THERE(c_q) && caller); c_op = COMMIT; closed = wanted; assert(closed || WHOLE)
  :: c_op == UPDATE && BOTH(PREPARED) -> assert(THERE(c_q)); c_op = COMMIT; final = a_v[c_q % 2]; owed = final; closed = wanted
  :: else -> c_op = ABORT
  fi;
  expired = expired && closed
}

/* epochs.restored_version */
inline find_goal() {
  assert(KNOWN);                                        /* k_v is an id: the version itself stands in the record */
  if
  :: c_op == NONE -> goal = k_v
#ifndef M_HOLD_IS_RESTORED
  :: ADMISSION -> goal = (a_served[c_q % 2] -> k_v : 0)
  :: c_op == COMMIT && !ADMISSION ->
#else
  :: c_op == COMMIT ->
#endif
     if :: k_q == c_q -> goal = k_v :: else -> assert(THERE(c_q)); goal = a_v[c_q % 2] fi
  :: c_op == CLEAR -> goal = 0
#ifdef M_UNDECIDED_IS_RESTORED
  :: c_op == ABORT && !ADMISSION && THERE(c_q) -> goal = a_v[c_q % 2]
  :: c_op == ABORT && !THERE(c_q) -> goal = 0
#else
#ifdef M_GOAL_IS_WHAT_IS_HELD
  :: c_op == ABORT && !ADMISSION -> goal = (HOLDS -> k_v : 0)
#else
  :: c_op == ABORT && !ADMISSION && (OVER || !THERE(c_q)) -> goal = (HOLDS -> k_v : 0)
  :: c_op == ABORT && !ADMISSION && !OVER && THERE(c_q) -> goal = (a_served[c_q % 2] -> k_v : 0)
#endif
#endif
#ifdef M_HOLD_IS_RESTORED
  :: c_op == ABORT && ADMISSION -> goal = (a_served[c_q % 2] -> k_v : 0)
#endif
  fi
}

/* GroupView.open: the arguments first; a slot that is taken belongs to a command whose word was never written. The
   other slot belongs to the last command: what that says of the group is needed until the next word stands. */
inline write_arguments(version, served) {
  atomic {
#ifdef M_ARGUMENTS_OVER_THE_LAST
    q = (THERE(c_q + 1) -> c_q + 2 : c_q + 1);
#else
    q = (THERE(c_q + 1) -> c_q + 3 : c_q + 1);
#endif
    a_v[q % 2] = version; a_served[q % 2] = served; a_held[q % 2] = after;
    a_of_admission[q % 2] = (op == HOLD || op == RELEASE); a_q[q % 2] = q; a_e[q % 2] = c_e
  }
}

/* committed_record.write_record: into the slot that the present word does not need. */
inline write_record() {
  atomic {
#ifdef M_RECORD_WHERE_IT_IS_NEEDED
    p = (NAMED(1) -> 1 : 0);
#else
    p = (NAMED(0) -> 1 : 0);
#endif
    r_q[p] = c_q; r_v[p] = n_v; r_held[p] = n_held
  }
}

#define MAY_CRASH :: atomic { ccrash < CCRASH -> ccrash++; goto look }

/* GroupView.commit: the record, then the word that names it. */
inline commit() {
#ifdef M_WORD_BEFORE_RECORD
  atomic { p = (NAMED(0) -> 1 : 0); k_q = c_q; k_v = n_v; k_held = n_held };
  if MAY_CRASH :: atomic { r_q[p] = c_q; r_v[p] = n_v; r_held[p] = n_held } fi
#else
  write_record();
  if MAY_CRASH :: atomic { k_q = c_q; k_v = n_v; k_held = n_held } fi
#endif
}

active proctype Controller() {
  byte q, op, goal, n_v, p; bool n_held, after, caller, saw_lapsed;    /* caller: who gave the open command lives */
look:                                                   /* the process here knows nothing but the words */
  atomic { q = 0; op = NONE; goal = 0; n_v = 0; p = 0; n_held = false; after = false; over = false };
end_look:
  if
  :: LOST(0) || LOST(1) -> goto recover
  :: atomic { UNDECIDED && (BOTH(PREPARED) || AT(0, FAILED) || AT(1, FAILED) || (OPENED && !caller)) -> decide() }; goto look
  :: atomic { OPENED && caller && ccrash < CCRASH -> ccrash++; caller = false }; goto look
  :: atomic { c_op == COMMIT && k_q != c_q -> assert(KNOWN); n_v = (ADMISSION -> k_v : final); n_held = AFTER };
     commit(); goto look
  :: OVER && UNRESTORED -> goto restore
  :: OVER && cmds < CMDS -> goto command
  :: atomic { leases < LEASES && k_held && !expired -> leases++; expired = true }; goto look
  :: atomic { LAPSED && WHOLE && !saw_lapsed -> saw_lapsed = true }; goto look
  :: OVER && !UNRESTORED && saw_lapsed -> goto lease
  :: atomic { OVER && !UNRESTORED && !(LAPSED && WHOLE) && !saw_lapsed -> over = true; goto end_over }
  fi;
end_over:
  atomic { LOST(0) || LOST(1) -> over = false }; goto recover;

command:                                                /* also by a process that finds the role free in an epoch that was not restored */
  if
  :: atomic { (OPS & 1) && (HOLDS || UNRESTORED) -> op = CLEAR; after = k_held }
  :: atomic { (OPS & 2) -> op = UPDATE; after = k_held }
  :: atomic { (OPS & 8) -> op = UPDATE; after = !k_held }
  :: atomic { (OPS & 4) && !k_held -> op = HOLD; after = true }
  :: atomic { (OPS & 4) && k_held && WHOLE -> op = RELEASE; after = false }
  :: atomic { (OPS & 4) && k_held -> cmds++; expired = false; goto look }     /* the owner renews its lease */
  :: atomic { !HOLDS && !UNRESTORED && !(OPS & 14) -> cmds = CMDS; goto look }
  fi;
  atomic { cmds++; versions++; wanted = after };
#ifdef M_COMMAND_FORGETS
  write_arguments(versions, HOLDS);
#else
  write_arguments(versions, HOLDS || UNRESTORED);
#endif
  if MAY_CRASH :: atomic { c_q = q; c_op = op; caller = true } fi;
  goto look;

lease:                                                  /* the keeper, which saw earlier that it had run out, has the role now */
  atomic { saw_lapsed = false; op = RELEASE; after = false };
  if
#ifdef M_LEASE_IS_NOT_READ_AGAIN
  :: k_held && WHOLE
#else
#ifdef M_LEASE_SERVES_ANYTHING
  :: LAPSED
#else
  :: LAPSED && WHOLE
#endif
#endif
     -> assert(expired); wanted = false; write_arguments(k_v, true)
  :: else -> goto look                                  /* renewed; or it stays: the memory is the caller's, status says so */
  fi;
  if MAY_CRASH :: atomic { c_q = q; c_op = op; caller = true } fi;
  goto look;
restore:
  assert(KNOWN && k_v == owed);
  atomic { op = UPDATE; after = k_held; wanted = closed };
#ifdef M_RESTORE_OPENS
  after = false;
#endif
#ifdef M_RESTORE_HAS_EMPTY_HANDS
  write_arguments(k_v, HOLDS);
#else
  write_arguments(k_v, true);
#endif
  if MAY_CRASH :: atomic { c_q = q; c_op = UPDATE; caller = true } fi;
  goto look;

recover:
  caller = false;
  if :: atomic { UNDECIDED -> decide() } :: atomic { !UNDECIDED -> skip } fi;
  if MAY_CRASH :: skip fi;
  atomic {
    find_goal(); assert(goal == owed); n_v = goal; n_held = k_held };
  if
#ifndef M_EPOCH_LOSES_COMMIT
  :: atomic { c_op == COMMIT && k_q != c_q ->
#ifndef M_EPOCH_LOSES_HOLD
       n_held = AFTER
#endif
     };
     commit()
#endif
#ifndef M_GOAL_IS_NOT_STORED
  :: !(c_op == COMMIT && k_q != c_q) && !goal && k_v -> commit()
#endif
  :: else
  fi;
  if MAY_CRASH :: skip fi;
  atomic { c_e++; c_op = NONE; owed = goal };
  goto look
}

inline end(holds) {
  atomic {
    s_holds[me] = holds; s_c[me] = DONE; done = c_q; memory[me] = (holds -> final : 0);
    if
    :: BOTH(DONE) && c_op != COMMIT -> assert(s_holds[0] == s_holds[1]); if :: !ADMISSION -> owed = (HOLDS -> final : 0) :: else fi
    :: else
    fi
  }
}

#define GONE    (c_e != e)
#define MAY_DIE :: rcrash < RCRASH -> goto dies

proctype Rank(byte me) {
  byte e = 1, done; bool touched, moves, after;
idle_:
  atomic { assert(!memory[me] || memory[me] == final); assert(held[me] == closed); idle[me] = true };
end_idle:
  if
  :: GONE -> goto rejoin
  :: atomic { !GONE && c_q > done && c_op == ABORT -> idle[me] = false; s_q[me] = c_q; s_c[me] = WORKING; touched = false }; goto stopping
  :: atomic { !GONE && c_q > done && (c_op == CLEAR || c_op == UPDATE || OPENED) ->
       idle[me] = false; s_q[me] = c_q; s_c[me] = WORKING; touched = false; moves = !OPENED; after = AFTER }
  MAY_DIE
  fi;

working:
  if
  :: GONE -> goto rejoin
  :: !GONE && c_op == ABORT -> goto stopping
  :: atomic { !GONE && (c_op == CLEAR || c_op == UPDATE) && memory[me] && !touched -> touched = true; memory[me] = 0; s_holds[me] = false };
     goto working
  :: !GONE && c_op == CLEAR && !memory[me] -> end(false); goto idle_
  :: atomic { !GONE && (c_op == UPDATE || OPENED) -> s_c[me] = PREPARED }      /* in place, or beside the old ones */
  :: atomic { fails < FAILS && !GONE && c_op != ABORT -> fails++; s_c[me] = FAILED }
  MAY_DIE
  fi;

deciding:
  if
  :: GONE -> goto rejoin
  :: atomic { !GONE && c_op == COMMIT -> held[me] = after }; end(moves || s_holds[me]); goto idle_
  :: !GONE && c_op == ABORT -> goto stopping
  MAY_DIE
  fi;

stopping:
  if
  :: GONE -> goto rejoin
#ifdef M_UNDO_OPENS
  :: atomic { !GONE -> s_c[me] = (touched -> STOPPED_TOUCHED : STOPPED); held[me] = false }
#else
  :: atomic { !GONE -> s_c[me] = (touched -> STOPPED_TOUCHED : STOPPED) }
#endif
  fi;
  if
  :: GONE -> goto rejoin
  :: !GONE && MINE(0) && s_c[0] >= STOPPED && MINE(1) && s_c[1] >= STOPPED ->
     end(s_holds[0] && s_holds[1]); goto idle_
  MAY_DIE
  fi;

dies:
  atomic { rcrash++; dead[me] = true; idle[me] = false; memory[me] = 0 };
  (GONE || s_e[me] != e);
rejoin:
  atomic { idle[me] = false; memory[me] = 0; touched = false };
  if
#ifdef M_EPOCH_BEGINS_OPEN
  :: atomic { held[me] = false;
#else
  :: atomic { held[me] = k_held;
#endif
       e = c_e; done = c_q - (c_op != NONE); dead[me] = false; s_e[me] = e; s_q[me] = 0; s_c[me] = ATTACHED; s_holds[me] = false };
     goto idle_
  MAY_DIE
  fi
}

init {
  atomic {
    select(rcrash : 0 .. RCRASH); select(ccrash : 0 .. CCRASH); select(fails : 0 .. FAILS);
    s_e[0] = 1; s_e[1] = 1; idle[0] = true; idle[1] = true;
    if
    :: memory[0] = 1; memory[1] = 1; s_holds[0] = true; s_holds[1] = true; r_v[0] = 1
    :: k_v = 0; owed = 0; final = 0                     /* a group that has never served */
    fi;
    run Rank(0); run Rank(1)
  }
  timeout;
  assert(over && !dead[0] && !dead[1] && idle[0] && idle[1] && s_e[0] == c_e && s_e[1] == c_e);
  assert(memory[0] == owed && memory[1] == owed && KNOWN);
  assert(held[0] == closed && held[1] == closed && k_held == closed && !(LAPSED && WHOLE))
}
