"""Writing a file whole or not at all."""

from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Put a file in its place once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
