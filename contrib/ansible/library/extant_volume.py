#!/usr/bin/python3
"""Ansible module: a volume of a pool, with its capacity and its space."""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.extant import ARGUMENTS, run, size_bytes

DOCUMENTATION = """
module: extant_volume
short_description: Manages volumes whose space is written
description:
  - A volume appears when it is complete. An existing one grows to C(capacity); it never shrinks.
  - With C(preallocation=full), what is not written of an existing volume is written, and its data is kept.
options:
  pool:
    description: Name of a pool, or a directory as a path with a slash.
    type: str
    required: true
  name:
    description: Name of the volume.
    type: str
    required: true
  state:
    description: Whether the volume exists. C(absent) destroys its data, unless a process has it open.
    type: str
    choices: [present, absent]
    default: present
  capacity:
    description:
      - Its logical size, in bytes or as C(20GiB). Required for C(present).
      - Extant rounds it up where necessary, to sectors of a qcow2 image, to MiB on a disk, to extents of LVM.
    type: str
  preallocation:
    description: How its space is made; the default is that of the pool.
    type: str
    choices: ['off', metadata, falloc, full]
  format:
    description: Of a new volume; the default follows from the end of its name.
    type: str
    choices: [raw, qcow2]
  rate:
    description: Bytes per second to write at most, as C(200M).
    type: str
  config_dir:
    description: Directory of the definitions, if it is not that of the user.
    type: path
  program:
    description: The command.
    type: str
    default: extant
"""

RETURN = """
volume:
  description: C(extant vol info --json); C(null) for C(absent).
  returned: success, not in check mode for a new volume
  type: dict
"""


# Bytes.
SECTOR = 512
ALIGNMENT_ON_DISK = 1 << 20


def rounding_bytes(module, volume):
    """What the capacity of `volume` is a multiple of."""
    if volume["format"] == "qcow2":
        return SECTOR
    pool = run(module, "pool", "info", module.params["pool"])
    if pool["kind"] == "disk":
        return ALIGNMENT_ON_DISK
    if pool["kind"] == "lvm":
        vgs = [module.get_bin_path("lvm", required=True), "vgs"]
        vgs += ["--noheadings", "--nosuffix", "--units", "b", "-o", "vg_extent_size", pool["path"]]
        _, out, _ = module.run_command(vgs, check_rc=True)
        return int(out)
    return 1


def steps(module, current):
    """The commands that lead from the volume `current`, empty if there is none, to the wanted one."""
    parameters = module.params
    place = (parameters["pool"], parameters["name"])
    if parameters["state"] == "absent":
        return [("vol", "delete", *place)] if current else []
    capacity = size_bytes(module, "capacity")
    mode, pace = parameters["preallocation"], ()
    space = ("--preallocation", mode) if mode else ()
    if parameters["rate"]:
        pace = ("--rate", parameters["rate"])
    if not current:
        form = ("--format", parameters["format"]) if parameters["format"] else ()
        return [("vol", "create", *place, str(capacity), *form, *space, *pace)]
    if parameters["format"] not in (None, current["format"]):
        module.fail_json(msg=f"the volume has the format {current['format']}")
    too_large = current["capacity_bytes"] - capacity
    if too_large > 0 and too_large >= rounding_bytes(module, current):
        module.fail_json(msg=f"the volume has {current['capacity_bytes']} bytes, and never shrinks")
    wanted = []
    if capacity > current["capacity_bytes"]:
        wanted.append(("vol", "resize", *place, str(capacity), *space, *pace))
    if mode == "full" and current["written_bytes"] < current["capacity_bytes"]:
        wanted.append(("vol", "materialize", *place, *pace))
    return wanted


def main():
    module = AnsibleModule(
        argument_spec={
            "pool": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "capacity": {"type": "str"},
            "preallocation": {"type": "str", "choices": ["off", "metadata", "falloc", "full"]},
            "format": {"type": "str", "choices": ["raw", "qcow2"]},
            "rate": {"type": "str"},
            **ARGUMENTS,
        },
        required_if=[("state", "present", ["capacity"])],
        supports_check_mode=True,
    )

    def info():
        return run(module, "vol", "info", module.params["pool"], module.params["name"], missing={})

    current = info()
    wanted = steps(module, current)
    if wanted and not module.check_mode:
        for words in wanted:
            run(module, *words)
        current = info()
    module.exit_json(changed=bool(wanted), volume=current or None)


if __name__ == "__main__":
    main()
