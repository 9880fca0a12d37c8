"""vLLM alone and vLLM with wsm, beside each other: a trainer that dies half way through an update.

=================  =========================================================================================
module             responsible for
=================  =========================================================================================
:mod:`.__main__`   plays both, prints one screen, draws it (``make demo-vllm``)
:mod:`.engine`     a weight transfer engine of vLLM that reads files, as a trainer sends them one by one
:mod:`.server`     ``vllm serve`` on loopback, and the model that it serves
=================  =========================================================================================

It runs in the environment of ``make test-vllm``, on a CPU, with a random model that it writes itself.
"""
