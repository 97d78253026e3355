"""Ways to score a block of rows by a linear head: CPU microseconds, the quietest round, and whether the bits are the kernel's.

python benchmarks/block.py [--classes 10] [--json FILE]
"""

import argparse

import torch
import torch.nn.functional as F

from record import quickest, record

ROWS, WIDTH, BLOCKS, ROUNDS = 2048, 384, 5, 40


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    draw, classes = torch.Generator().manual_seed(0), arguments.classes
    pool = [
        torch.randn(ROWS, WIDTH, generator=draw) for _ in range(BLOCKS)
    ]  # as it is in a pool: not in the cache
    weight, bias = torch.randn(classes, WIDTH, generator=draw) / 20, torch.randn(classes, generator=draw)
    turned, columns = {id(x): x.T.contiguous() for x in pool}, weight.T.contiguous()
    wide, wide_bias = F.pad(weight, (0, 0, 0, -classes % 16)), F.pad(bias, (0, -classes % 16))

    def parts(size):
        return lambda x: torch.cat([F.linear(rows, weight, bias) for rows in x.split(size)])

    ways = {
        "`F.linear`, 2048 rows (the kernel's)": lambda x: F.linear(x, weight, bias),
        **{f"blocks of {size} rows": parts(size) for size in (1024, 256, 32)},
        "outputs padded to 16": lambda x: F.linear(x, wide, wide_bias)[:, :classes],
        "`addmm`, the weight stored transposed": lambda x: torch.addmm(bias, x, columns),
        "`weight @ x.T`": lambda x: (weight @ x.T).T + bias,
        "`weight @ x_T`, the pool stored transposed": lambda x: (weight @ turned[id(x)]).T + bias,
    }
    rows = []
    with torch.no_grad():
        expected = [F.linear(x, weight, bias) for x in pool]
        for way, score in ways.items():
            seconds = quickest(lambda score=score: [score(x) for x in pool], ROUNDS) / BLOCKS
            same = all(torch.equal(score(x), found) for x, found in zip(pool, expected, strict=True))
            operations = 2 * ROWS * WIDTH * classes
            row = {
                "way": way,
                "microseconds": 1e6 * seconds,
                "rate": 1e-9 * operations / seconds,
                "same": same,
            }
            rows.append(row | {"operations": operations, "bytes": 4 * ROWS * WIDTH})
            print(f"{way:45} {row['microseconds']:7.0f} us  {'same' if same else 'other'} bits")
    record(arguments.json, "block", {"rows": ROWS, "width": WIDTH, "classes": classes}, rows)


if __name__ == "__main__":
    main()
