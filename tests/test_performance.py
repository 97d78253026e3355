"""reproduction/performance.md is what the committed results give, and nothing else."""

import copy
import json

import pytest

from benchmarks.performance import PAGE, RESULTS, document, floor, results


def test_the_page_is_made_of_the_results():
    found = results()
    assert document(found) == PAGE.read_text(encoding="utf-8"), "run python -m benchmarks.performance"
    other = copy.deepcopy(found)
    other["one_example"]["rows"][0]["bare"] *= 2
    assert document(other) != document(found)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_result_says_how_and_where_it_was_measured(path):
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["command"].startswith("python benchmarks/")
    assert found["versions"]["torch"]
    assert found["machine"].get("processor") or found["machine"].get("gpu")
    assert found["when"]
    assert found["rows"]
    assert path.stat().st_size < 2**15


def test_the_floor_is_the_larger_of_operations_and_bytes():
    result = {"ceilings": {"Gflop/s": 50.0, "GB/s": 20.0}}
    assert floor({"operations": 1e11, "bytes": 2e10}, result) == pytest.approx(2.0)
    assert floor({"operations": 1e9, "bytes": 1e11}, result) == pytest.approx(5.0)
