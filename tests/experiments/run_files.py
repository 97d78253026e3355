"""What a run directory holds, in a form in which two runs can be compared bit for bit, timings apart."""

from cop2l.files import read_json, read_lines

TIMES = (
    "seconds",
    "learn_seconds",
    "peak_memory",
    "peak_cuda_allocated",
    "peak_cuda_reserved",
    "total_cuda_allocated",
)
SMALL = ("data.n=100", "tasks=3", "architecture.hidden=16", "memory=30", "epochs=5", "lr=0.3")
SMALL += ("methods.cop2l.k=8",)
"""A run of CoP2L that takes a fraction of a second."""


def configured(*pairs, name="synthetic"):
    from cop2l.experiments import grid

    return grid.single_run(grid.read_configuration(name), grid.overrides([*SMALL, *pairs]))


def content(folder):
    """Every file with its bytes; where and when it was made is left out."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if not file.is_file() or name in ("lock", "environment.json"):
            continue
        found[name] = file.read_bytes()
        if name == "records.jsonl":
            found[name] = [timeless(record) for record in read_lines(file)]
        if name == "summary.json":
            found[name] = timeless(read_json(file))
    return found


def timeless(record):
    return {key: value for key, value in record.items() if key not in TIMES}
