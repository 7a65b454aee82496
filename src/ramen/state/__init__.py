"""What a method has learned, on disk: a log that costs what a batch adds, and survives kills and damage.

``open_store`` is the way in: ``store`` writes records and keeps the log short, ``log`` reads them back.
"""

from ramen.state.log import classes_in, dtypes_below
from ramen.state.store import SaveTimes, StateStore, local_folder, open_store

__all__ = ["SaveTimes", "StateStore", "classes_in", "dtypes_below", "local_folder", "open_store"]
