"""What methods remember of a stream: memories that a method registers with ``add_memory``."""

from ramen.memory.class_means import ClassMeans
from ramen.memory.image_memory import ImageMemory
from ramen.memory.lowest_entropy import Arrivals, LowestEntropyMemory
from ramen.memory.most_confident import MostConfident
from ramen.memory.plan import MemoryPlan
from ramen.memory.reservoir import Reservoir
from ramen.memory.retrieval import Memory
from ramen.memory.row_table import ColumnSpec
from ramen.memory.stream_memory import StreamMemory
from ramen.memory.timely_balanced import TimelyBalanced

__all__ = [
    "Arrivals",
    "ClassMeans",
    "ColumnSpec",
    "ImageMemory",
    "LowestEntropyMemory",
    "Memory",
    "MemoryPlan",
    "MostConfident",
    "Reservoir",
    "StreamMemory",
    "TimelyBalanced",
]
