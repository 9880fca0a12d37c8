"""What happened, written down and asked again: the journals of ranks and controllers.

:mod:`wsm.worker.recording` and the controller write the entries, ``wsm journal`` reads them. In this order:

==================  =============================================================================
module              answers
==================  =============================================================================
:mod:`.entry`       what happened? Kinds of entries, their lines of JSON, and where those stand, whatever
                    becomes of their process: a file; a ring of the segment
:mod:`.inputs`      what was the core asked? Its inputs as facts, and the core asked again with them
:mod:`.replay`      can it have happened? The core's answers, and the tables
:mod:`.spans`       what was when, and for how long? Journals as spans of time, and as a Chrome trace
==================  =============================================================================

This package imports nothing by itself.
"""
