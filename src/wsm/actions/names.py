"""The constant names of all units of work.

Plans, order constraints, receipts, journals, diagrams and configured deadlines speak of a unit by its name.
"""

from __future__ import annotations

from typing import Final

STOP_ADMITTING: Final = "stop_admitting"
SETTLE_REQUESTS: Final = "settle_requests"
RESUME_ADMITTING: Final = "resume_admitting"
LOSE_REQUESTS: Final = "lose_requests"
END_SET_ASIDE: Final = "end_set_aside"
RESET_INPUTS: Final = "reset_inputs"

FORGET_ROUTING_REPLAY: Final = "forget_routing_replay"
RESUME_ROUTING_REPLAY: Final = "resume_routing_replay"

DROP_MAIN_GRAPHS: Final = "drop_main_graphs"
DROP_DRAFT_GRAPHS: Final = "drop_draft_graphs"
CAPTURE_MAIN_GRAPHS: Final = "capture_main_graphs"
CAPTURE_DRAFT_GRAPHS: Final = "capture_draft_graphs"

CLEAR_DEEPEP_BUFFER: Final = "clear_deepep_buffer"
RECREATE_DEEPEP_BUFFER: Final = "recreate_deepep_buffer"
ABANDON_DEEPEP_BUFFER: Final = "abandon_deepep_buffer"

SHUT_DOWN_EP_GROUP: Final = "shut_down_ep_group"
SHUT_DOWN_TP_GROUP: Final = "shut_down_tp_group"
SHUT_DOWN_WORLD_GROUP: Final = "shut_down_world_group"
RESTART_WORLD_GROUP: Final = "restart_world_group"
RESTART_TP_GROUP: Final = "restart_tp_group"
RESTART_EP_GROUP: Final = "restart_ep_group"
ABANDON_GROUPS: Final = "abandon_groups"

RELEASE_WEIGHTS: Final = "release_weights"
LOAD_WEIGHTS: Final = "load_weights"
PROCESS_LOADED: Final = "process_loaded"

PLAN_STAGING_MEMORY: Final = "plan_staging_memory"
STAGE_WEIGHTS: Final = "stage_weights"
VERIFY_STAGED: Final = "verify_staged"
MAKE_FLIP_READY: Final = "make_flip_ready"
FLIP_WEIGHTS: Final = "flip_weights"

RELEASE_AUXILIARY_CACHE: Final = "release_auxiliary_cache"
REBUILD_AUXILIARY_CACHE: Final = "rebuild_auxiliary_cache"
FORGET_AUXILIARY_CACHE: Final = "forget_auxiliary_cache"
RESET_AUXILIARY_INPUTS: Final = "reset_auxiliary_inputs"
RELEASE_KV_CACHE: Final = "release_kv_cache"
REBUILD_KV_CACHE: Final = "rebuild_kv_cache"
FORGET_KV_CACHE: Final = "forget_kv_cache"
FREE_CACHES_FOR_LOAD: Final = "free_caches_for_load"
REBUILD_CACHES_AFTER_LOAD: Final = "rebuild_caches_after_load"

EMPTY_ALLOCATOR_CACHE: Final = "empty_allocator_cache"

VERIFY_CLEARED: Final = "verify_cleared"
VERIFY_LOADED: Final = "verify_loaded"

DECLARE_CLEARED: Final = "declare_cleared"
DECLARE_PREPARED: Final = "declare_prepared"
DECLARE_STAGED: Final = "declare_staged"

#: Every name.
ALL: Final = frozenset(
    value for value in vars().values() if isinstance(value, str) and value.islower() and value.isidentifier()
)
