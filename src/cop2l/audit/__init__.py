"""What an auditor uses: everything around the kernel, which decides alone. Nothing here can raise a verdict, only lower it.

verify       the one function: a certificate or a run directory in, a verdict out
cut          the samples: loaded and split as is usual, or as the auditor says
model        the model, from its description or from the auditor's own function
commitment   whether what was chosen is what was committed to
holdout      hold-out certificates: the stored learner, and learning again
flags        how an auditor types what is known of the data
readable     the verdict as a notebook shows it
finding      where certificates lie
directory    a whole run directory: every certificate, and every file that repeats what they say
"""
