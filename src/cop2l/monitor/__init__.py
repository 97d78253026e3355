"""Does a claim still hold in service? Needs no torch.

evidence     the evidence against "the error rate is at most b", from counts alone
monitor      Monitor: one claim, its feedback so far, and the alarm, in one small file
feedback     files of feedback: lines of 0 and 1, or CSV
words        what was found, what it means and what it rests on
"""
