"""Continual-learning methods: one file each, one protocol, one registry."""
