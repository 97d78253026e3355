"""The kernel: it decides alone whether a certificate holds. Everything clever is outside.

It imports numpy, torch, safetensors, the standard library, `cop2l.randomness` and `cop2l.errors`. Read it in this order:

options, form             every number and text of a certificate has a declared type and range
arithmetic                whether a stated bound follows from its integers: signs at 60 digits, no root is looked for
samples, arrays           the rows that the loader wrote, and their fingerprints
exact, learning           a plain CoP2L, the specification of the learner: its bits are defined here
counting                  the integers of a certificate, from sets and errors
models, scale, building   cop2l's own models, from their descriptions
verify, verdict           the decision, and what was found
holdout, exported         the same for hold-outs of other methods and for exported programs
__main__                  python -P -m cop2l.kernel
"""
