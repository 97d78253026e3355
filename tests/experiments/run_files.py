"""The content of a run directory without its times, to compare two runs bit for bit."""

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
SMALL += ("method=cop2l", "methods.cop2l.k=8")
"""A run of CoP2L that takes a fraction of a second."""


def configured(*pairs, name="synthetic"):
    from cop2l.experiments import grid

    return grid.single_run(grid.read_configuration(name), grid.overrides([*SMALL, *pairs]))


def content(folder):
    """The bytes of every file, without the environment and the times."""
    files = {}
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if not file.is_file() or name in ("lock", "environment.json"):
            continue
        files[name] = file.read_bytes()
        if name == "records.jsonl":
            files[name] = [timeless(record) for record in read_lines(file)]
        if name == "summary.json":
            files[name] = timeless(read_json(file))
    return files


def timeless(record):
    return {key: value for key, value in record.items() if key not in TIMES}
