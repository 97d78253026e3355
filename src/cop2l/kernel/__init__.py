"""The kernel decides whether a certificate holds. It also defines the learned bits, and has cop2l's own models.

It imports numpy, torch, safetensors, the standard library and `cop2l.randomness`. A reading order:

options, form             the declared type and range of every number and text of a certificate
arithmetic                whether a stated bound follows from its counts: signs at 60 digits, no root is searched
samples, arrays           fingerprints, and the arrays that the loader writes
exact, learning           the reference algorithm of CoP2L, which defines the learned bits
counting                  the counts of a certificate, from sets and errors
scale, models, building   cop2l's own models, from their descriptions
verdict, checking         the sentences of a verdict, and the checks of CoP2L's certificates
holdout, exported         the checks of hold-out certificates of all methods, and of exported programs
__main__                  the command python -P -m cop2l.kernel
"""
