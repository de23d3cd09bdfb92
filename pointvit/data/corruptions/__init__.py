"""Corruptions of two public benchmarks and sweeps of our own: clouds made here, or read from public files."""

from pointvit.data.corruptions.benchmarks import (
    BENCHMARKS,
    CLEAN,
    NUM_POINTS,
    Benchmark,
    dense_pool,
    made,
    public_frame,
)
from pointvit.data.corruptions.corruption import Corruption
from pointvit.data.corruptions.modelnet40_c import MODELNET40_C
from pointvit.data.corruptions.modelnet_c import MODELNET_C
from pointvit.data.corruptions.sweeps import SWEEPS

__all__ = [
    "BENCHMARKS",
    "CLEAN",
    "MODELNET40_C",
    "MODELNET_C",
    "NUM_POINTS",
    "SWEEPS",
    "Benchmark",
    "Corruption",
    "dense_pool",
    "made",
    "public_frame",
]
