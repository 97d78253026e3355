"""The type of a method: CoP2L, or a baseline."""

from cop2l.certify.learner import CoP2L
from cop2l.methods.base import Learner

Method = CoP2L | Learner
"""Both have model, options, tasks_seen, memory_used, learn, predict, save, restore and load."""
