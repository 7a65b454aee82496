"""What a method has learned, on disk: a log that costs what a batch adds, and survives kills and damage.

``open_store`` is the way in. A store is a folder of *segments*. A segment is a sequence of *records*
(``records``), each with checksums. A record has the rows of the memory that a batch has written, and the
counters; nothing is ever changed in place. The state is what all records say together, later ones overriding
earlier ones (``replay``). A row that has been overwritten since is dead in its old record. When too much of
the log is dead, the rows of the oldest segment that are alive are written once more, and the segment is
removed (``state_store``): that way the log takes at most twice what the memory takes.
"""

from ramen.state.state_store import StateStore, open_store

__all__ = ["StateStore", "open_store"]
