"""What methods remember of a stream: memories that a method registers with ``add_memory``."""

from ramen.memory.base import StreamMemory
from ramen.memory.images import ImageMemory
from ramen.memory.lowest_entropy import Arrivals, LowestEntropyMemory
from ramen.memory.plan import MemoryPlan
from ramen.memory.policies import MostConfident, Reservoir, TimelyBalanced
from ramen.memory.retrieval import Memory
from ramen.memory.rows import ColumnSpec

__all__ = [
    "Arrivals",
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
