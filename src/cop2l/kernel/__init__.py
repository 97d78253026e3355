"""The kernel: it decides alone whether a certificate holds. Everything clever is outside.

It imports numpy, torch, safetensors, the standard library and `cop2l.randomness`; nothing else of cop2l. Read it in this order:

options      every choice that the learned parameters depend on, with types and ranges
arithmetic   whether a stated bound follows from its integers: signs at 60 digits, no root is looked for
samples      what a sample is: its fingerprint, and the rows that it has more than once
exact        examples and their scores, as bits that depend on nothing else
learning     a plain CoP2L, the specification of the learner: its bits are defined here
form         reading a certificate: every number and text has a declared type and range
verdict      what was found; only this package makes one that says "valid"
verify       the decision
"""
