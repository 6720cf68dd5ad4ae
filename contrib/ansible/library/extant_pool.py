#!/usr/bin/python3
"""Ansible module: the definition of a pool of volumes."""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.extant import ARGUMENTS, run

DOCUMENTATION = """
module: extant_pool
short_description: Defines pools of written volumes
description:
  - A pool is a directory, whose files are volumes. Its directory and volumes are kept when its definition is removed.
options:
  name:
    description: Name of the pool.
    type: str
    required: true
  path:
    description: Its directory, which is made if missing. Required for C(present).
    type: path
  state:
    description: Whether the pool is defined.
    type: str
    choices: [present, absent]
    default: present
  config_dir:
    description: Directory of the definitions, if it is not that of the user.
    type: path
  program:
    description: The command.
    type: str
    default: extant
"""

RETURN = """
pool:
  description: C(extant pool info --json); C(null) for C(absent).
  returned: success, not in check mode for a new pool
  type: dict
"""


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "path": {"type": "path"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            **ARGUMENTS,
        },
        required_if=[("state", "present", ["path"])],
        supports_check_mode=True,
    )
    name, path = module.params["name"], module.params["path"]
    defined = {pool["name"]: pool for pool in run(module, "pool", "list")["pools"]}
    current = defined.get(name)
    is_wanted = module.params["state"] == "present"
    if is_wanted and current is not None and os.path.abspath(current["path"]) != os.path.abspath(path):
        module.fail_json(msg=f"the pool {name} is defined already, at {current['path']}")
    changed = is_wanted != (current is not None)
    if changed and not module.check_mode:
        if is_wanted:
            run(module, "pool", "define", name, path)
        else:
            run(module, "pool", "delete", name)
    is_there = is_wanted and not (changed and module.check_mode)
    module.exit_json(changed=changed, pool=run(module, "pool", "info", name) if is_there else None)


if __name__ == "__main__":
    main()
