"""The GPU tests themselves, as far as a machine without a GPU can try them: what they start, and how they end."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from devices.gpu_testing import GPU_TESTS, environment, run
from loaded_script import script
from overlaplab_engine.errors import EngineError
from overlaplab_engine.network.device_clock import EDGES_NS

ROOT = Path(__file__).parents[2]
FILES = script("scripts/gpu_tests.py").FILES
TINY = [
    *(
        "--device",
        "cpu",
        "--width",
        "8",
        "--heads",
        "2",
        "--seq",
        "4",
        "--batch",
        "1",
        "--vocab",
        "20",
        "--layers",
        "1",
    ),
    *("--steps", "1", "--warmup", "1", "--nproc", "1", "--link", "100Gbps,1us,8"),
]


@pytest.fixture(scope="module")
def files() -> dict[str, ModuleType]:
    return {Path(path).stem: script(path) for path in FILES}


def test_every_test_that_needs_a_gpu_is_run() -> None:
    """But for what is here, which only speaks of such tests."""
    needs = re.compile(r"mark\.gpu\b|= GPU_TESTS\b")
    found = (path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py") if needs.search(path.read_text()))
    assert {str(path) for path in found} - {"tests/scripts/test_gpu_tests.py"} == {*FILES}


# What `overlaplab` needs, and a machine with little but torch lacks.
LACKING = ("msgspec", "altair", "loky", "platformdirs", "isal", "streamlit", "vl_convert")


def test_where_little_is_installed_all_can_be_imported() -> None:
    """Also the benchmarks of the engine."""
    lines = ["import sys", f"sys.modules.update(dict.fromkeys({LACKING!r}))"]
    lines += [f"sys.path[:0] = [{str(ROOT / 'tests' / 'support')!r}, {str(ROOT / 'benchmarks')!r}]"]
    lines += ["from loaded_script import script"]
    lines += [f"script({name!r})" for name in (*FILES, "benchmarks/gpu.py", "benchmarks/_gpu_parts.py")]
    assert run([sys.executable, "-c", "\n".join(lines)], 400) == (0, "")


# The processes they start


def test_processes_find_the_packages_of_this_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a Python that has no site-packages, in another folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    where = "import importlib.util; print(importlib.util.find_spec('overlaplab_engine').origin)"
    line = [sys.executable, "-S", "-c", where]
    assert subprocess.run(line, capture_output=True).returncode == 1
    assert run(line, 60) == (0, f"{ROOT / 'engine' / 'overlaplab_engine' / '__init__.py'}\n")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert environment()["PYTHONPATH"] == os.pathsep.join([str(ROOT), str(ROOT / "engine"), "/elsewhere"])
    assert environment(MORE="1")["MORE"] == "1"


@pytest.mark.slow
def test_a_process_that_takes_too_long_is_ended_with_what_it_said() -> None:
    code, said = run([sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"], 5)
    assert code != 0
    assert said == "here\n\nended after 5 s\n"


@pytest.fixture
def bare_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.executable` is a Python that has this repository's packages from PYTHONPATH or not at all."""
    python = tmp_path / "python"
    has_them = f'case ":$PYTHONPATH:" in *":{ROOT / "engine"}:"*) exec "{sys.executable}" "$@";; esac'
    python.write_text(f"#!/bin/sh\n{has_them}\necho 'No module named overlaplab_engine' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "executable", str(python))


@pytest.mark.slow
@pytest.mark.usefixtures("bare_python")
def test_every_file_records_where_nothing_is_installed(
    files: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("test_gpu_link", "test_streams_gpu"):
        monkeypatch.setattr(files[name], "RECORDING_S", 1000.0)  # this machine may be busy
    names = ("naive", "torch-fsdp2")
    monkeypatch.setattr(files["test_gpu_link"], "ALONE", names)
    every = files["test_gpu_link"].recorded(tmp_path / "made", *TINY)
    for name in names:
        manifest, events = files["test_gpu_link"].read(every / name)
        assert manifest["strategy"] == name
        assert events
    alone = files["test_streams_gpu"].recorded(tmp_path / "alone", "--strategy", "naive", *TINY)
    assert (alone / "run.json").exists()


def recorded_runs(out: Path, *names: str, **more: str) -> tuple[int, str]:
    line = [
        sys.executable,
        str(ROOT / "tests" / "support" / "programs" / "phantom_runs.py"),
        str(out),
        *TINY,
        "--",
        *names,
    ]
    return run(line, 800, **more)


@pytest.mark.slow
def test_after_a_strategy_that_fails_the_others_are_recorded(files: dict[str, ModuleType], tmp_path: Path) -> None:
    code, said = recorded_runs(tmp_path, "naive", "nonsense", "bucketed", "sense")
    assert code == 1
    assert said.splitlines()[-2:] == ["nonsense: exit code 2", "sense: exit code 2"]
    assert sorted(path.parent.name for path in tmp_path.glob("*/run.json")) == ["bucketed", "naive"]
    (tmp_path / "errors.txt").write_text(said)
    assert files["test_gpu_link"].read(tmp_path / "naive")[0]["strategy"] == "naive"
    with pytest.raises(AssertionError, match="nonsense: exit code 2"):
        files["test_gpu_link"].read(tmp_path / "nonsense")


def test_after_a_strategy_that_hangs_the_others_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a recorder that says which strategies it begins, does not end with the second, and notes the others."""
    python = tmp_path / "python"
    python.write_text(f"""#!/bin/sh
        while [ "$1" != -- ]; do shift; done
        shift
        for name; do
            echo $name
            [ $name != bucketed ] || exec sleep 600
            touch {tmp_path}/$name.recorded
        done""")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("LIMIT_S", "4")
    monkeypatch.setattr(sys, "argv", ["phantom_runs.py", str(tmp_path), "--", "naive", "bucketed", "zero2", "zero3"])
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="1"):
        script("tests/support/programs/phantom_runs.py").main()
    signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "bucketed: took too long (LIMIT_S=4)\n"
    assert sorted(path.stem for path in tmp_path.glob("*.recorded")) == ["naive", "zero2", "zero3"]


def test_what_the_links_kernels_take_is_set_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, edges_ns in {"900": 900, "0": 0, "": EDGES_NS}.items():
        monkeypatch.setenv("OVERLAPLAB_EDGES_NS", text)
        found = script("engine/overlaplab_engine/network/device_clock.py").EDGES_NS
        assert found == edges_ns
    for text in ("1.5us", "-1"):
        monkeypatch.setenv("OVERLAPLAB_EDGES_NS", text)
        with pytest.raises(EngineError, match=f"OVERLAPLAB_EDGES_NS={text} is not a whole number of ns"):
            script("engine/overlaplab_engine/network/device_clock.py")


# Warnings, time, and a figure that is asked for


MADE = """
import warnings
from devices.gpu_testing import GPU_TESTS

pytestmark = GPU_TESTS

def test_warned():
    warnings.warn("Synchronization debug mode is a prototype feature")
"""


@pytest.mark.slow
def test_warnings_fail_no_gpu_test(files: dict[str, ModuleType], tmp_path: Path) -> None:
    made = tmp_path / "test_made.py"
    line = [sys.executable, "-m", "pytest", "--noconftest", "-p", "no:cacheprovider", "-m", "gpu"]
    line += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), str(made)]
    made.write_text(MADE)
    code, said = run(line, 400)
    assert code == 0, said
    assert "1 passed, 1 warning" in said
    made.write_text(MADE.replace("pytestmark = GPU_TESTS", "import pytest; pytestmark = pytest.mark.gpu"))
    assert run(line, 400)[0] == 1
    for name, module in files.items():
        assert module.pytestmark is GPU_TESTS, name


def test_no_gpu_test_relies_on_a_signal_to_end_it(files: dict[str, ModuleType]) -> None:
    for name, module in files.items():
        tests = [test for name, test in vars(module).items() if name.startswith("test_")]
        assert tests
        marks = [mark for test in tests for mark in getattr(test, "pytestmark", [])]
        marks += [mark.mark for mark in module.pytestmark]
        limits = [mark for mark in marks if mark.name == "timeout"]
        assert limits, name
        assert all(mark.kwargs == {"method": "thread"} for mark in limits), name


def kernel(name: str, us: float, correlation: int) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": us, "dur": 1, "args": {"correlation": correlation}}


def test_one_kernel_beside_a_collective_shows_that_computation_goes_on(
    files: dict[str, ModuleType], tmp_path: Path
) -> None:
    goes_on = files["test_gpu_link"].test_computation_goes_on_meanwhile
    comm = "engine::comm seq=0 kind=all_reduce dtype=float32 bytes=8 group=0 link=1Gbps,1us,8 modelled_ns=9"
    call = {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernel", "tid": 1, "dur": 0.1}
    events = [
        {"ph": "X", "cat": "cpu_op", "name": comm, "tid": 1, "ts": 0, "dur": 1},
        *({**call, "ts": 0.1 * n, "args": {"correlation": n}} for n in (1, 2)),
        kernel("emulated_link_begin", 100, 1),
        kernel("emulated_link_wait", 110, 2),
        *(kernel("mm", 200 + n, 10 + n) for n in range(99)),
    ]

    def written(events: list[dict[str, Any]]) -> Path:
        (tmp_path / "bucketed").mkdir(exist_ok=True)
        (tmp_path / "bucketed" / "run.json").write_text("{}")
        trace = json.dumps({"traceEvents": events}).encode()
        (tmp_path / "bucketed" / "rank0.pt.trace.json.gz").write_bytes(gzip.compress(trace))
        return tmp_path

    goes_on(written([*events, kernel("mm", 105, 9)]))
    with pytest.raises(AssertionError):
        goes_on(written(events))


# scripts/gpu_tests.py


HEAD = """
import ctypes, json, os, sys, types
import pytest
from devices.gpu_testing import GPU_TESTS, limit

pytestmark = GPU_TESTS

def hang():
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)  # no signal interrupts this, and Python's handlers do not run
"""


def gpu_tests(results: Path, *more: str) -> list[str]:
    return [sys.executable, str(ROOT / "scripts" / "gpu_tests.py"), str(results), *more]


def made(path: Path, text: str) -> str:
    path.write_text(f"{HEAD}\n{text}")
    return str(path)


def told(results: Path) -> list[tuple[str, str]]:
    """Of each line of the results, its first word and the test's name and fault."""
    lines = (results / "results.txt").read_text().splitlines()
    return [(line.split()[0], line.rpartition("::")[2]) for line in lines]


def unpacked(results: Path, folder: Path) -> list[str]:
    folder.mkdir()
    tars = sorted(results.glob("gpu_tests.tar.?"))
    subprocess.run(["tar", "x", "-C", folder], input=b"".join(tar.read_bytes() for tar in tars), check=True)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_test_that_hangs_keeps_no_other_from_running(tmp_path: Path) -> None:
    one = made(
        tmp_path / "test_one.py",
        """
def test_before(tmp_path): (tmp_path / "run.json").write_text("{}")
@limit(2)
def test_hangs(): hang()
@pytest.mark.parametrize("name", ["a", "b"])
def test_after(name, tmp_path): assert name == "a"
def test_skipped(): pytest.skip("no reason")
""",
    )
    two = made(tmp_path / "test_two.py", "def test_other_file(tmp_path): (tmp_path / 'x.txt').write_text('x')")
    code, said = run(gpu_tests(tmp_path / "results", one, two), 400)
    assert code == 1
    assert told(tmp_path / "results") == [
        ("passed", "test_before"),
        ("the", "test_hangs"),
        ("passed", "test_after[a]"),
        ("failed", "test_after[b]: AssertionError: assert 'b' == 'a'"),
        ("skipped", "test_skipped: Skipped: no reason"),
        ("passed", "test_other_file"),
    ]
    assert said == (tmp_path / "results" / "results.txt").read_text()
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == [
        *("gpu_tests.log", "gpu_tests.tar.0", "results.txt")
    ]
    log = (tmp_path / "results" / "gpu_tests.log").read_text()
    assert "Timeout" in log
    assert "pthread_mutex_lock" in log
    files = unpacked(tmp_path / "results", tmp_path / "unpacked")
    assert [path for path in files if not path.endswith("notes.jsonl")] == [
        *("gpu_tests/test_one-1/test_before0/run.json", "gpu_tests/test_two-1/test_other_file0/x.txt")
    ]


def test_after_an_error_that_loses_the_gpu_a_fresh_process_goes_on(tmp_path: Path) -> None:
    """Torch is one whose CUDA is as after an illegal access, in the process where that happened."""
    one = made(
        tmp_path / "test_one.py",
        """
def lost(): raise RuntimeError("CUDA error: an illegal memory access was encountered")
def test_loses_it():
    cuda = types.SimpleNamespace(is_initialized=lambda: True, synchronize=lost)
    sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
    lost()
def test_after(): assert "torch" not in sys.modules
""",
    )
    assert run(gpu_tests(tmp_path / "results", one), 400)[0] == 1
    error = "test_loses_it: RuntimeError: CUDA error: an illegal memory access was encountered"
    assert told(tmp_path / "results") == [("failed", error), ("the", "test_loses_it"), ("passed", "test_after")]


@pytest.mark.slow
def test_what_does_not_end_in_time_is_ended(tmp_path: Path) -> None:
    one = made(
        tmp_path / "test_one.py",
        """
@limit(600)
def test_hangs(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    hang()
""",
    )
    code, _ = run(gpu_tests(tmp_path / "results", one, "--seconds", "20"), 400)
    assert code == 1
    assert told(tmp_path / "results") == [("the", "test_hangs"), (f"{one}:", f"{one}: no time is left")]
    assert "gpu_tests/test_one-1/test_hangs0/run.json" in unpacked(tmp_path / "results", tmp_path / "unpacked")


def test_a_stopped_run_of_the_tests_leaves_what_it_has(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    one = made(
        tmp_path / "test_one.py",
        f"""
@limit(600)
def test_hangs(tmp_path):
    (tmp_path / "run.json").write_text("{{}}")
    open({str(ready)!r}, "w").write(str(os.getpid()))
    hang()
""",
    )
    with subprocess.Popen(gpu_tests(tmp_path / "results", one), stdout=subprocess.DEVNULL) as process:
        child = ready.read_text()
        process.terminate()
        assert process.wait(300) == 128 + signal.SIGTERM
    assert not Path("/proc", child).exists()
    assert "gpu_tests/test_one-1/test_hangs0/run.json" in unpacked(tmp_path / "results", tmp_path / "unpacked")


@pytest.mark.slow
def test_a_file_that_cannot_be_read_is_no_success(tmp_path: Path) -> None:
    one = made(tmp_path / "test_one.py", "import nowhere")
    two = made(tmp_path / "test_two.py", "def test_other_file(): pass")
    code, said = run(gpu_tests(tmp_path / "results", one, two), 400)
    assert code == 1
    assert said.splitlines()[0] == f"{one}: pytest ended with exit code 2"
    assert told(tmp_path / "results")[1:] == [("passed", "test_other_file")]
    assert "No module named 'nowhere'" in (tmp_path / "results" / "gpu_tests.log").read_text()
    assert run(gpu_tests(tmp_path / "results", two), 200)[0] == 0


def test_packed_files_are_few_and_small(tmp_path: Path) -> None:
    """The largest is cut off."""
    folder, results = tmp_path / "traces", tmp_path / "results"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "large").write_bytes(bytes(300_000))
    (folder / "a" / "small one").write_text("small")
    (folder / "a" / "link").symlink_to("small one")
    pack = ["sh", str(ROOT / "scripts" / "pack.sh"), str(folder), str(results)]
    assert run(pack, 60) == (0, "")
    assert [path.name for path in results.iterdir()] == ["traces.tar.0"]
    code, said = run(pack, 60, MOST_BYTES="200000")
    assert (code, said) == (0, "traces: only the first 200000 bytes are packed; the largest files are cut off\n")
    tars = sorted(results.iterdir())
    assert [tar.name for tar in tars] == [f"traces.tar.{n}" for n in range(4)]
    assert [tar.stat().st_size for tar in tars] == [50_000] * 4
    joined = b"".join(tar.read_bytes() for tar in tars)
    found = subprocess.run(["tar", "x", "-O", "traces/a/small one"], input=joined, capture_output=True)
    assert found.stdout == b"small"


def test_packing_that_is_ended_leaves_what_was_packed(tmp_path: Path) -> None:
    """`split` is what ends: whole folders of results were lost so."""
    folder, results, tools = tmp_path / "traces", tmp_path / "results", tmp_path / "tools"
    folder.mkdir()
    tools.mkdir()
    (folder / "a").write_text("first")
    pack = ["sh", str(ROOT / "scripts" / "pack.sh"), str(folder), str(results)]
    assert run(pack, 60) == (0, "")
    before = (results / "traces.tar.0").read_bytes()
    (tools / "split").write_text("#!/bin/sh\nkill -9 $PPID\n")
    (tools / "split").chmod(0o755)
    (folder / "b").write_text("second")
    assert run(pack, 60, PATH=f"{tools}:{os.environ['PATH']}")[0] != 0
    assert (results / "traces.tar.0").read_bytes() == before
    assert run(pack, 60) == (0, "")
    assert b"second" in (results / "traces.tar.0").read_bytes()
    assert [path.name for path in results.iterdir()] == ["traces.tar.0"]
