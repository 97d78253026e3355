"""A model at work outside experiments.

export       weights, program and certificate in one folder
server       what both servers share: one address, limits, errors in one sentence
serve        predictions, the certificate, and feedback into monitors, over HTTP
watch        the report page while its run goes on
"""
