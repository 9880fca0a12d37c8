"""Words in shared memory: what the processes of one group say to each other, and how they wait for it.

Knows bytes, locks and processes, and stores the words of :mod:`wsm.states.words`. Knows no machines, no
actions and no paddle; needs nothing but the standard library.

======================  ==================================================================================
module                  responsible for
======================  ==================================================================================
:mod:`.layout`          what is where in a segment, and its header: start here
:mod:`.segment`         one group's segment: create, attach, adopt, remove; a copy that is only looked at
:mod:`.ownership`       who owns a segment, and when another process may take it over
:mod:`._memory`         files of shared memory: opened, checked, mapped, published whole
:mod:`.names`           names and paths of segments
:mod:`.slot`            payloads: a report or a command's arguments, written before the word
:mod:`.ring`            the last lines of a journal, in the segment
:mod:`.presence`        the action that a participant is in, and since when
:mod:`.view_reader`     from a segment's words to the View that the rules read
:mod:`.lock_file`       byte locks of the kernel in one file per group
:mod:`.identity`        pid, start time and pid namespace: which process it is
:mod:`.liveness`        who stands for a participant, who is the controller; being told when one dies
:mod:`.waiting`         waiting for words by futex, and waking the threads that wait
:mod:`.fastdeploy`      FastDeploy's int32 words, by compare-exchange; :mod:`.live_signal`, its heartbeat
:mod:`.errors`          what can be wrong with all of these
======================  ==================================================================================
"""
