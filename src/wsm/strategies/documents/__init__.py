"""Small JSON documents that prove themselves: manifests, metas, lists of a transport.

====================================  ====================================================================
modules                               responsible for
====================================  ====================================================================
strict_json                           JSON without duplicate names, NaN, or depth that overflows
sealed_json                           a text that carries its own digest
sealed_document                       what all sealed documents share
manifest_fields                       typed readers of their fields
====================================  ====================================================================
"""
