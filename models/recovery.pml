/* What a group must hold once its epoch has ended, as src/wsm/states/epochs.py and src/wsm/controller/recovery.py have it.

   SHOWS    that what is to be restored outlives whoever raises the epoch, and a second death before it is restored: all that a
            successor knows is in the words and in the arguments of the last command.
   HOLDS    in every state: no rank serves but what was committed last; an epoch ends with the goal that an observer of all would
            name (`owed`), and nothing else is restored.
            in every end: all ranks are idle in the same epoch, and all hold what is owed: the version that was decided last,
            nothing after a clear or an abort that all came to the end of, what they held before a command that was cut short.
   MEASURED by `make models`, spin 6.5.2: bounds, states, what for
     defaults                                        15,654  a death at any point of a command
     RCRASH=2 FAILS=1                               246,084  a second death before the restore has ended
     RCRASH=2 CCRASH=1 CMDS=2                       774,230  whoever raises the epoch dies too
     RCRASH=2 CCRASH=1, any cycle                   443,033  no endless run
     RCRASH=2 CCRASH=2 CMDS=2 FAILS=1             4,235,555  more of everything
   READING  A look at all words is atomic: transaction.pml has the stale ones.
   ASSUMED  Whoever owns the group kills and reaps before it begins the epoch. All who take the controller role, one after the
            other, are one process here. A restore that fails and is aborted to its end is a command like any other: it is
            reported, and leaves a group that is owed nothing.
   NOT      modelled: steps and parking, hot update, halves of the state (tags), FAULTED, helpers.
   MUTANTS  -DM_NAME drops one rule; each is caught within the bounds that models/catalogue.py names.
*/
#ifndef CMDS
#define CMDS 1           /* commands, the updates that restore not counted */
#endif
#ifndef RCRASH
#define RCRASH 1         /* deaths of ranks */
#endif
#ifndef CCRASH
#define CCRASH 0         /* deaths of whoever holds the controller role, at any point between two stores */
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
#define ATTACHED 0
#define WORKING 1
#define PREPARED 2
#define FAILED 3
#define STOPPED 4
#define STOPPED_TOUCHED 5
#define DONE 6           /* kept, cleared or committed: `s_holds` says which */

byte c_e = 1, c_q, c_op = NONE;                        /* command */
byte k_q, k_v = 1;                                     /* committed; 0: nothing is to be served */
byte a_e[2], a_q[2], a_v[2]; bool a_served[2];         /* arguments, two slots: version, whether the group was to serve */
byte s_e[N], s_q[N], s_c[N]; bool s_holds[N];          /* status */

byte held[N], final = 1, owed = 1, versions = 1, rcrash, ccrash, fails, cmds; bool dead[N], idle[N], over;

#define MINE(j)     (s_e[j] == c_e && s_q[j] == c_q)
#define AT(j, code) (MINE(j) && s_c[j] == code)
#define BOTH(code)  (AT(0, code) && AT(1, code))
#define JOINED      (s_e[0] == c_e && s_e[1] == c_e)
#define LOST(j)     (dead[j] && s_e[j] == c_e)         /* died before it joined: replaced in the same epoch */
#define UNDECIDED   (c_op == UPDATE || (c_op == CLEAR && !BOTH(DONE)))
#define OVER        ((c_op == NONE && JOINED) || (BOTH(DONE) && (c_op != COMMIT || k_q == c_q)))
#define THERE(q)    (a_e[(q) % 2] == c_e && a_q[(q) % 2] == (q))
#define HOLDS       (s_holds[0] || s_holds[1])
#define UNRESTORED  (c_op == NONE && k_v && !HOLDS)

inline decide() {
  if
  :: c_op == UPDATE && BOTH(PREPARED) -> assert(THERE(c_q)); c_op = COMMIT; final = a_v[c_q % 2]; owed = final
  :: else -> c_op = ABORT
  fi
}

/* epochs.restored_version */
inline find_goal() {
  if
  :: c_op == NONE -> goal = k_v
  :: c_op == COMMIT -> if :: k_q == c_q -> goal = k_v :: else -> assert(THERE(c_q)); goal = a_v[c_q % 2] fi
  :: c_op == CLEAR -> goal = 0
#ifdef M_UNDECIDED_IS_RESTORED
  :: c_op == ABORT && THERE(c_q) -> goal = a_v[c_q % 2]
  :: c_op == ABORT && !THERE(c_q) -> goal = 0
#else
#ifdef M_GOAL_IS_WHAT_IS_HELD
  :: c_op == ABORT -> goal = (HOLDS -> k_v : 0)
#else
  :: c_op == ABORT && (OVER || !THERE(c_q)) -> goal = (HOLDS -> k_v : 0)
  :: c_op == ABORT && !OVER && THERE(c_q) -> goal = (a_served[c_q % 2] -> k_v : 0)
#endif
#endif
  fi
}

/* GroupView.open: the arguments first; a slot that is taken belongs to a command whose word was never written. */
inline write_arguments(version, served) {
  atomic {
    q = (THERE(c_q + 1) -> c_q + 2 : c_q + 1);
    a_v[q % 2] = version; a_served[q % 2] = served; a_q[q % 2] = q; a_e[q % 2] = c_e
  }
}

#define MAY_CRASH :: atomic { ccrash < CCRASH -> ccrash++; goto look }

active proctype Controller() {
  byte q, op, goal;
look:                                                   /* whoever sits here knows nothing but the words */
  atomic { q = 0; op = NONE; goal = 0; over = false };
end_look:
  if
  :: LOST(0) || LOST(1) -> goto recover
  :: atomic { UNDECIDED && (BOTH(PREPARED) || AT(0, FAILED) || AT(1, FAILED)) -> decide() }; goto look
  :: atomic { c_op == COMMIT && k_q != c_q -> k_q = c_q; k_v = final }; goto look
  :: OVER && UNRESTORED -> goto restore
  :: OVER && cmds < CMDS -> goto command
  :: atomic { OVER && !UNRESTORED -> over = true; goto end_over }
  fi;
end_over:
  atomic { LOST(0) || LOST(1) -> over = false }; goto recover;

command:                                                /* also by whoever finds the role free in an epoch that nobody restored */
  if
  :: atomic { HOLDS || UNRESTORED -> op = CLEAR }
  :: op = UPDATE
  fi;
  atomic { cmds++; versions++ };
#ifdef M_COMMAND_FORGETS
  write_arguments(versions, HOLDS);
#else
  write_arguments(versions, HOLDS || UNRESTORED);
#endif
  if MAY_CRASH :: atomic { c_q = q; c_op = op } fi;
  goto look;

restore:
  assert(k_v == owed);
#ifdef M_RESTORE_HAS_EMPTY_HANDS
  write_arguments(k_v, HOLDS);
#else
  write_arguments(k_v, true);
#endif
  if MAY_CRASH :: atomic { c_q = q; c_op = UPDATE } fi;
  goto look;

recover:
  if :: atomic { UNDECIDED -> decide() } :: atomic { !UNDECIDED -> skip } fi;
  if MAY_CRASH :: skip fi;
  atomic {
    find_goal(); assert(goal == owed);
    if
#ifndef M_EPOCH_LOSES_COMMIT
    :: goal && c_op == COMMIT && k_q != c_q -> k_q = c_q; k_v = goal
#endif
#ifndef M_GOAL_IS_NOT_STORED
    :: !goal && k_v -> k_q = c_q; k_v = 0
#endif
    :: else
    fi };
  if MAY_CRASH :: skip fi;
  atomic { c_e++; c_op = NONE; owed = goal };
  goto look
}

inline end(holds) {
  atomic {
    s_holds[me] = holds; s_c[me] = DONE; done = c_q; held[me] = (holds -> final : 0);
    if :: BOTH(DONE) && c_op != COMMIT -> assert(s_holds[0] == s_holds[1]); owed = (HOLDS -> final : 0) :: else fi
  }
}

#define GONE    (c_e != e)
#define MAY_DIE :: rcrash < RCRASH -> goto dies

proctype Rank(byte me) {
  byte e = 1, done; bool touched;
idle_:
  atomic { assert(!held[me] || held[me] == final); idle[me] = true };
end_idle:
  if
  :: GONE -> goto rejoin
  :: atomic { !GONE && c_q > done && c_op == ABORT -> idle[me] = false; s_q[me] = c_q; s_c[me] = WORKING; touched = false }; goto stopping
  :: atomic { !GONE && c_q > done && (c_op == CLEAR || c_op == UPDATE) -> idle[me] = false; s_q[me] = c_q; s_c[me] = WORKING; touched = false }
  MAY_DIE
  fi;

working:
  if
  :: GONE -> goto rejoin
  :: !GONE && c_op == ABORT -> goto stopping
  :: atomic { !GONE && (c_op == CLEAR || c_op == UPDATE) && held[me] && !touched -> touched = true; held[me] = 0; s_holds[me] = false };
     goto working
  :: !GONE && c_op == CLEAR && !held[me] -> end(false); goto idle_
  :: atomic { !GONE && c_op == UPDATE -> s_c[me] = PREPARED }      /* in place, or beside the old ones */
  :: atomic { fails < FAILS && !GONE && c_op != ABORT -> fails++; s_c[me] = FAILED }
  MAY_DIE
  fi;

deciding:
  if
  :: GONE -> goto rejoin
  :: !GONE && c_op == COMMIT -> end(true); goto idle_
  :: !GONE && c_op == ABORT -> goto stopping
  MAY_DIE
  fi;

stopping:
  if
  :: GONE -> goto rejoin
  :: atomic { !GONE -> s_c[me] = (touched -> STOPPED_TOUCHED : STOPPED) }
  fi;
  if
  :: GONE -> goto rejoin
  :: !GONE && MINE(0) && s_c[0] >= STOPPED && MINE(1) && s_c[1] >= STOPPED ->
     end(s_holds[0] && s_holds[1]); goto idle_
  MAY_DIE
  fi;

dies:
  atomic { rcrash++; dead[me] = true; idle[me] = false; held[me] = 0 };
  (GONE || s_e[me] != e);
rejoin:
  atomic { idle[me] = false; held[me] = 0; touched = false };
  if
  :: atomic { e = c_e; done = c_q - (c_op != NONE); dead[me] = false; s_e[me] = e; s_q[me] = 0; s_c[me] = ATTACHED; s_holds[me] = false };
     goto idle_
  MAY_DIE
  fi
}

init {
  atomic {
    select(rcrash : 0 .. RCRASH); select(ccrash : 0 .. CCRASH); select(fails : 0 .. FAILS);
    s_e[0] = 1; s_e[1] = 1; idle[0] = true; idle[1] = true;
    if
    :: held[0] = 1; held[1] = 1; s_holds[0] = true; s_holds[1] = true
    :: k_v = 0; owed = 0; final = 0                     /* a group that has never served */
    fi;
    run Rank(0); run Rank(1)
  }
  timeout;
  assert(over && !dead[0] && !dead[1] && idle[0] && idle[1] && s_e[0] == c_e && s_e[1] == c_e);
  assert(held[0] == owed && held[1] == owed)
}
