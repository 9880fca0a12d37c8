/* One word that is sampled as a level, and why it is no command.

   SHOWS    that a group deadlocks whose word is at once the controller's wish, the leader's result and every rank's echo:
            a rank that is slow to look for CLEARED finds UPDATING there, since the controller saw CLEARED first and went on.
            What a level said between two looks is lost; in a product only sleeps hide it.
   EXPECTED an invalid end state (the checker of this repository counts a run without one as a failure).
   -DSLEEPS lets the controller go on only when no rank is late, as its sleep between two looks nearly always does: no error, so
            the lost level is the whole fault.
   -DSEQUENCE is the same group with a sequence number and one answer per rank, as wsm has it: no error.
   MEASURED by `make models`, spin 6.5.2: bounds, states, what for
     defaults                                           136  two ranks: must deadlock
     N=3                                                281  three ranks: must deadlock
     SLEEPS N=3 CYCLES=3                              2,022  what the sleep hides
     SEQUENCE N=3 CYCLES=3                            1,167  a sequence instead of a level
*/
#ifndef N
#define N 2              /* ranks */
#endif
#ifndef CYCLES
#define CYCLES 2         /* clears, each with its update */
#endif

byte came = 0, round = 0;                /* a barrier of the communication library: it does not care who is late */

inline barrier() {
  atomic { mine = round; came++; if :: came == N -> came = 0; round = 1 - round :: else fi };
  round != mine
}

#ifndef SEQUENCE

mtype = { normal, clearing, cleared, updating };
mtype word = normal, sampled = normal;   /* the one word of the group; what the leader read of it and sent around */
byte late = 0;                           /* ranks that have not noticed yet what they wait for */
#ifdef SLEEPS
#define NOBODY_IS_LATE (late == 0)
#else
#define NOBODY_IS_LATE true
#endif

active proctype Engine() {               /* the API server: asks, then waits for the level that means "done" */
  byte k;
  for (k : 1 .. CYCLES) {
    atomic { word == normal && NOBODY_IS_LATE -> word = clearing };
    atomic { word == cleared && NOBODY_IS_LATE -> word = updating }
  }
  word == normal
}

active [N] proctype Rank() {
  byte rank = _pid - 1, mine; mtype told;
end_serving:
  do
  :: word != normal || sampled != normal || came > 0 ->   /* the next look at the word; idle looks are no steps of the model */
     if :: rank == 0 -> sampled = word :: else fi;
     barrier();
     told = sampled;
     barrier();
     if :: rank == 0 -> sampled = normal :: else fi;
     if :: told != normal -> word = told; goto work :: else fi;
  od;
work:                                    /* the loop in which a rank stays until the level is normal again */
  if
  :: atomic { word == clearing -> late++ }; barrier(); if :: rank == 0 -> word = cleared :: else fi;
     atomic { word == cleared -> late-- }; goto work
  :: word == cleared -> word != cleared; goto work
  :: atomic { word == updating -> late++ }; barrier(); if :: rank == 0 -> word = normal :: else fi;
     atomic { word == normal -> late-- }; goto end_serving
  :: word == normal -> goto end_serving
  fi
}

#else

byte command = 0, answer[N];             /* one writer each: the number of the command; of the last one that this rank has done */

active proctype Engine() {
  byte k, rank;
  for (k : 1 .. 2 * CYCLES) {
    command++;                           /* odd: clear, even: update */
    for (rank : 0 .. N - 1) { answer[rank] == command }
  }
}

active [N] proctype Rank() {
  byte rank = _pid - 1, mine, seen = 0;
end_serving:
  do
  :: command != seen ->
     assert(command == seen + 1);        /* none is ever skipped */
     seen = command;
     barrier();
     answer[rank] = seen
  od
}

#endif
