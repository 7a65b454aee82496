"""The records of the package's methods as JSON, for commands that list and describe them without torch.

python -m tools.method_records      # after a change of a method's parameters or of its facts
"""

import dataclasses
import json
from pathlib import Path

import ramen
from ramen.methods import _registry


def records() -> str:
    """The text of the file, from what the classes say."""
    found = {name: _registry.get_method(name).info for name in ramen.list_methods()}
    own = {
        name: {key: value for key, value in dataclasses.asdict(info).items() if key != "origin"}
        for name, info in found.items()
        if _registry.get_method(name).__module__.startswith("ramen.methods.")
    }
    return json.dumps(own, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    path = Path(_registry.__file__).with_name(_registry.RECORDS)
    path.write_text(records(), encoding="utf-8")


if __name__ == "__main__":
    main()
