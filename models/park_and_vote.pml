/* Park and vote, alone: how ranks agree behind which step they stop, without a collective (src/wsm/states/view.py).

   SHOWS    that ranks which run steps together, each by itself deciding when to begin one, all accept a command behind the
            same step, that no rank is left alone inside a step, and that the next command finds all ranks serving again.
            More ranks, steps and commands than transaction.pml can have, and nothing that fails.
   HOLDS    a command is accepted behind one step by all; in every end all ranks are idle and all commands are taken.
   MEASURED by `make models`, spin 6.5.2: bounds, states, what for
     defaults                                        29,798  three ranks, decided
     FOLLOW                                          95,845  three ranks, each serves on at once
     FOLLOW N=2 WORK=3 CMDS=3                        25,472  two ranks, more of everything
     FOLLOW N=2, any cycle                           12,213  no endless run
     N=4                                            834,912  four ranks, decided
     FOLLOW N=4                                   4,486,553  four ranks, each serves on at once
     N=4 WORK=3 CMDS=3                            3,317,006  four ranks, more of everything
     HOLDS CMDS=4                                     37,424  hold, release, hold, release
     HOLDS N=2 WORK=3 CMDS=4, any cycle               11,315  no endless run
   -DFOLLOW is how a hot update's commit is taken: no rank can refuse it, so a rank that accepts serves on at once, and one that sees
            a peer that has finished the command accepts too. Without it a rank serves again after the decision only.
   -DHOLDS  makes every second command a release of the hold before it: a rank under a hold begins and joins no step, so all stand
            already, and a release is accepted without another word of where they stand.
   READING  Words are read one after the other; a rank that has read one may have acted on it much later.
   MUTANTS  -DM_NAME drops one rule; each is caught within the bounds that models/catalogue.py names.
*/
#ifndef N
#define N 3              /* ranks */
#endif
#ifndef WORK
#define WORK 2           /* steps that a rank may begin by itself; the others must join */
#endif
#ifndef CMDS
#define CMDS 2           /* commands */
#endif
#ifdef HOLDS
#define HELD (done % 2 == 1)             /* under every other command that is decided */
#define RELEASES (q % 2 == 0)
#else
#define HELD false
#endif
#ifdef M_HELD_RANK_STEPS
#define MAY_STEP true
#else
#define MAY_STEP (!HELD)
#endif
#define PARKED 0
#define RUNNING 1

byte command, decided;                   /* controller: the newest command; the newest that all have accepted */
byte w_q[N], w_k[N], w_n[N];             /* step word of each rank: sequence, kind, step */
byte answer[N];                          /* status word of each rank: the newest command that it has accepted */
byte entered[WORK + 2], accepted[(CMDS + 1) * N];
bool idle[N];

#if N == 2
#define ANY(X) (X(0) || X(1))
#define EACH(X, A) :: atomic { X(0) -> A(0) } :: atomic { X(1) -> A(1) }
#elif N == 3
#define ANY(X) (X(0) || X(1) || X(2))
#define EACH(X, A) :: atomic { X(0) -> A(0) } :: atomic { X(1) -> A(1) } :: atomic { X(2) -> A(2) }
#elif N == 4
#define ANY(X) (X(0) || X(1) || X(2) || X(3))
#define EACH(X, A) :: atomic { X(0) -> A(0) } :: atomic { X(1) -> A(1) } :: atomic { X(2) -> A(2) } :: atomic { X(3) -> A(3) }
#endif
#define UNSEEN(j) (!(seen & (1 << j)))
#define SEE(j) seen = seen | (1 << j)
#ifdef M_RUNNING_WITHOUT_SEQUENCE
#define FINISHED(j) false
#else
#define FINISHED(j) (q != 0 && w_k[j] == RUNNING && w_q[j] >= q)
#endif
#define LATER(j) (w_n[j] > n && !FINISHED(j))
#ifdef M_PARKED_WITHOUT_SEQUENCE
#define STANDS(j) (UNSEEN(j) && w_k[j] == PARKED && w_n[j] == n)
#else
#define STANDS(j) (UNSEEN(j) && w_k[j] == PARKED && w_q[j] == q && w_n[j] == n)
#endif

active proctype Controller() {
  byte k, j;
  for (k : 1 .. CMDS) {
    command = k;
    for (j : 0 .. N - 1) { answer[j] == k };
    for (j : 1 .. N - 1) { assert(accepted[k * N + j] == accepted[k * N]) };
    decided = k
  }
}

/* A step is a rendezvous: no rank leaves it before all have entered. */
inline step() {
  atomic { idle[me] = false; n++; w_q[me] = done; w_k[me] = RUNNING; w_n[me] = n; entered[n]++ };
  entered[n] == N
}

active [N] proctype Rank() {
  byte me = _pid - 1, n, done, q, seen;

idle_:
  atomic { q = 0; seen = 0; idle[me] = true };
end_idle:
  if
  :: atomic { command > done -> q = command; idle[me] = false }
  :: MAY_STEP && n < WORK -> step(); goto idle_
  :: MAY_STEP && ANY(LATER) -> step(); goto idle_
  fi;
#ifdef HOLDS
  if :: RELEASES -> goto accepts :: else fi;
#endif
draining:                                /* until the requests that run are satisfied; it serves on, and joins */
  do
  :: n < WORK -> step()
  :: ANY(LATER) -> step()
  :: break
  od;
parking:
  atomic { w_q[me] = q; w_k[me] = PARKED; w_n[me] = n };
  seen = 1 << me;
  do
#ifndef M_NO_JOIN_IN_PARKING
  :: ANY(LATER) -> step(); goto parking
#endif
  EACH(STANDS, SEE)
  :: seen == (1 << N) - 1 -> break
#ifdef FOLLOW
  :: ANY(FINISHED) -> break
#endif
  od;
accepts:
  atomic { accepted[q * N + me] = n + 1; answer[me] = q; done = q };
#if !defined(FOLLOW) && !defined(M_SERVES_BEFORE_ALL_ACCEPT)
  decided >= done;                       /* who has accepted serves again only after the decision */
#endif
  goto idle_
}

init {
  byte j;
  timeout;
  assert(decided == CMDS);
  for (j : 0 .. N - 1) { assert(idle[j]) }
}
