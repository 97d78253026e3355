"""The learner that certifies itself, hold-outs, and what they check of their inputs."""
