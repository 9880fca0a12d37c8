"""wsm inside FastDeploy: its ``DynamicWeightManager`` by another import; FastDeploy's words and loop stay.

=================  ======================================================================================
module             responsible for
=================  ======================================================================================
_dynamic_weights   :class:`DynamicWeightManager`: FastDeploy's constructor, attributes and methods
_calls             the fragments of FastDeploy's log that stay; how its loop calls; its device's surfaces
_control_calls     FastDeploy's control requests (V1): its own method inside one command of the group
_control_contract  what a control request does, from which state: tables and pure functions
_entries           a rank inside FastDeploy's loop: it polls until rank 0 says that all leave
_install           the way in: FastDeploy's module gets wsm's class
_part_words        FastDeploy's words of one data-parallel part; its cache process, asked by one of them
_runner_surfaces   FastDeploy's objects as wsm's surfaces, bound when its loop hands them in
_models            FastDeploy's models as weights and loaders, and what is made of them behind a load
_membership        which ranks are one group, and what its first rank tells the others
_configuration     what ``fd_config`` and the environment say
errors             FastDeploy's types of what fails
=================  ======================================================================================

docs/fastdeploy.md tells how it is used.
"""

from wsm.fastdeploy._dynamic_weights import DynamicWeightManager
from wsm.fastdeploy._install import install, install_if_asked

__all__ = ["DynamicWeightManager", "install", "install_if_asked"]
