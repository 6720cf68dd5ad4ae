"""What the modules for Extant share: the command, and sizes."""

import json
import re

UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}

ARGUMENTS = {
    "config_dir": {"type": "path"},
    "program": {"type": "str", "default": "extant"},
}


def size_bytes(module, name):
    """The parameter `name`, a number of bytes or as `20GiB`, in bytes."""
    match = re.fullmatch(r"([0-9]+)\s*([A-Za-z]*)", module.params[name].strip())
    if not match or match[2].upper() not in UNITS:
        module.fail_json(msg=f"{name}: a number of bytes, or with KiB, MiB, GiB or TiB")
    return int(match[1]) * UNITS[match[2].upper()]


def run(module, *words, missing=None):
    """The document of `extant WORDS --json`; `missing` where the object does not exist."""
    words = [module.params["program"], *words, "--json"]
    if module.params["config_dir"]:
        words += ["--config-dir", module.params["config_dir"]]
    status, out, error = module.run_command(words)
    if status == 0:
        return json.loads(out)
    try:
        event = json.loads(error.splitlines()[-1])
    except (ValueError, IndexError):
        module.fail_json(msg=error or f"status {status}", rc=status, cmd=words)
    if missing is not None and event["kind"] == "not-found":
        return missing
    module.fail_json(msg=event["message"], kind=event["kind"], rc=status, cmd=words)
