"""The surfaces over real engines: paddle's tensors, memory and communicators.

=======================  ===================================================================================
module                   behind it
=======================  ===================================================================================
:mod:`.paddle_weights`   parameters of paddle layers in host memory; :mod:`._paddle_staging`, a second version
:mod:`.device_weights`   parameters of paddle layers in device memory, and a second version of them
:mod:`.model_loading`    models that take a checkpoint themselves, with the :mod:`.loader_attributes` of old
:mod:`.paddle_memory`    what a process occupies, on the host and on a GPU, and what it may still take
:mod:`.paddle_groups`    communicators: Gloo's (with :mod:`._gloo_sockets`) and those of devices
:mod:`.rendezvous`       where the members of a group find each other
:mod:`.paddle_bytes`     a tensor's memory as bytes, the same on every build of paddle
:mod:`.required_call`    what an installed build lacks, by the name of the call
:mod:`.errors`           what can go wrong
=======================  ===================================================================================

Nothing is imported here, since each brings paddle.
"""
