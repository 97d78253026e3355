"""A model at work outside experiments.

export       weights, program and certificate in one folder
"""
