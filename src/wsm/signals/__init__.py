"""Words in shared memory: what the processes of one group say to each other, and how they wait for it.

Knows bytes, locks and processes, and stores the words of :mod:`wsm.states.words`. Knows no machines, no
actions and no paddle.

======================  ==================================================================================
module                  responsible for
======================  ==================================================================================
:mod:`.layout`          names and paths of segments, and what is where in one: start here
:mod:`.segment`         one group's segment: create, attach, adopt, remove; a copy that is only looked at
:mod:`.ownership`       who owns a segment, and when another process may take it over
:mod:`._memory`         files of shared memory: opened, checked, mapped, published whole
:mod:`.owner_settings`  what the owner says of the whole group
:mod:`.presence`        which process stands at a place, the action that it is in, and since when
:mod:`.lock_file`       byte locks of the kernel in one file per group
:mod:`.liveness`        who stands for a participant, who is the controller; being told when one dies
:mod:`.waiting`         from words to the View that rules read; waiting for words by futex, and waking
:mod:`.fastdeploy`      FastDeploy's int32 words, by compare-exchange, and its sign of life
:mod:`.errors`          what can be wrong with all of these
======================  ==================================================================================
"""
