"""What a group does and did, for Prometheus: read off its segment and its journals when it is asked for.

No rank does anything for it, and a group whose processes are all dead is read as well.

================  ========================================================================================
module            responsible for
================  ========================================================================================
:mod:`.history`   counts and histograms of what journals tell; pure
:mod:`.families`  facts and history as the metrics of Prometheus; pure
:mod:`.follow`    what was written into journals, files or rings, since the last look
:mod:`.exporter`  the exporter: reads groups, and answers a scrape
:mod:`._endpoint` the exporter behind an address of this host
================  ========================================================================================

The exposition is written by the package ``prometheus_client`` (the extra ``metrics``), which is imported when
the first scrape is answered.
"""

from wsm.metrics.exporter import Exporter

__all__ = ["Exporter"]
