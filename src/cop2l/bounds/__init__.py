"""The bounds of docs/theory.md as functions of numbers, rounded outwards, without torch."""

from cop2l.bounds.binomial import binomial_tail_inverse, binomial_upper_tail, clopper_pearson
from cop2l.bounds.bound import Bound
from cop2l.bounds.compression import kl_certificate
from cop2l.bounds.families import (
    average_of,
    gained_at_least,
    net_forgetting,
    pooled_certificate,
)
from cop2l.bounds.holdout import holdout_certificate
from cop2l.bounds.preference import buffer_certificate, preference_certificate, preference_epsilon
from cop2l.bounds.sharing import anytime_log_delta, grid_size, log_of_delta, log_weight, log_zeta

__all__ = [
    "Bound",
    "anytime_log_delta",
    "average_of",
    "binomial_tail_inverse",
    "binomial_upper_tail",
    "buffer_certificate",
    "clopper_pearson",
    "gained_at_least",
    "grid_size",
    "holdout_certificate",
    "kl_certificate",
    "log_of_delta",
    "log_weight",
    "log_zeta",
    "net_forgetting",
    "pooled_certificate",
    "preference_certificate",
    "preference_epsilon",
]
