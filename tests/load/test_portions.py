"""One large file that workers decode in portions: the same tables as without them, whatever is in the file."""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import psutil
import pytest
from hostile.mutations import mutated, seeds
from loaded_script import script
from loky import ProcessPoolExecutor
from made.traces import op, write
from pandas.testing import assert_frame_equal

from overlaplab import OverlaplabError, load_run
from overlaplab.load import reading
from overlaplab.load.file import inflate, portions
from overlaplab.load.file.portions import Decoders
from overlaplab.load.file.trace_file import read_trace
from overlaplab.load.packed import pack

SAMPLES = Path(__file__).parents[2] / "traces"
LONG_S = 600


class Apart(Executor):
    """An executor without processes, whose jobs and results are pickled all the same."""

    def __init__(self) -> None:
        self.accepted = 0
        """How many portions were decoded."""

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        function, *arguments = pickle.loads(pickle.dumps(args))
        future: Future[Any] = Future()
        try:
            result = pickle.loads(pickle.dumps(function(*arguments)))
        except Exception as error:
            future.set_exception(error)
        else:
            self.accepted += isinstance(result, tuple)
            future.set_result(result)
        return future


def content(text: bytes, executor: Executor | None = None) -> object:
    """All that is read of a file, byte for byte; the line where it cannot be read."""
    try:
        packed = pack(read_trace("rank0.json", io.BytesIO(text), decoders=executor and Decoders(executor, 2)))
    except OverlaplabError as error:
        return str(error)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def assert_same(text: bytes) -> int:
    """Compare with what is read without workers; returns how many portions they decoded."""
    executor = Apart()
    assert content(text, executor) == content(text)
    return executor.accepted


@pytest.fixture
def chunk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how much is read at once, of a portion as well."""
    return lambda size: monkeypatch.setattr(inflate, "CHUNK_BYTES", size)


@pytest.mark.parametrize("path", sorted(SAMPLES.rglob("*.json.gz")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_samples(path: Path, chunk: Callable[[int], None]) -> None:
    chunk(1 << 14)
    assert assert_same(path.read_bytes()) > 0


@pytest.fixture(scope="module")
def gpu_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a GPU, in the shape that kineto writes: with arrows right after their events, and collectives."""
    path = tmp_path_factory.mktemp("gpu") / "rank0.json.gz"
    script("benchmarks/_kineto.py").write(path, events=1000, ranks=2)
    return path


@pytest.mark.parametrize("size", [400, 611, 1024, 5000])
def test_arrows_across_portions(gpu_trace: Path, size: int, chunk: Callable[[int], None]) -> None:
    chunk(size)
    assert assert_same(gpu_trace.read_bytes()) > 5


@pytest.mark.parametrize("count", [1, 3])
def test_any_mutation_is_read_the_same(
    count: int, chunk: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "PORTION_CHUNKS", count)
    texts, accepted = seeds(), 0
    for number in range(100):
        chunk((4096, 700, 300)[number % 3])
        accepted += assert_same(mutated(texts[number % len(texts)], number))
    assert accepted > 100


ARGUMENTS = (
    r'{"text": "}, {\"ph\": \"X\"", "more": "}, {", "\\\"": "\u00e4 \ud83d\ude00 \\u0041"}',
    '{"text": "ä \N{EXTRATERRESTRIAL ALIEN} }, { ñ", "list": [{"ph": "X", "ts": 3}, {"a": [{}, {}]}]}',
)


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("count", [1, 2])
def test_borders_at_every_byte(
    arguments: str, count: int, chunk: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within strings, escapes, characters of several bytes, and objects in arguments."""
    monkeypatch.setattr(portions, "PORTION_CHUNKS", count)
    event = '{"ph": "X", "cat": "cpu_op", "name": "\N{EXTRATERRESTRIAL ALIEN}%d", "ts": %d, "dur": 1, "args": %s}'
    events = [event % (i, i, arguments) for i in range(12)]
    text = ('{"traceEvents": [' + ", ".join(events) + '], "baseTimeNanoseconds": 5}').encode()
    accepted = 0
    for size in range(140, 260):  # an event's length is among them
        chunk(size)
        accepted += assert_same(text)
    assert accepted > 20


@pytest.mark.parametrize("place", range(20))
@pytest.mark.parametrize("damage", [b"\0", b'{"ph": "X", "name": "x" "ts": 5}, ', b"}, {", b"\xff", b"]", b'"'])
def test_damage_anywhere(damage: bytes, place: int, chunk: Callable[[int], None]) -> None:
    chunk(500)
    text = seeds()[0]
    at = len(text) * place // 20
    assert_same(text[:at] + damage + text[at:])


def spans(count: int) -> list[dict[str, Any]]:
    """Begins and their ends."""
    event = {"cat": "cpu_op", "pid": 1, "tid": 1}
    return [event | {"ph": phase, "name": f"s{i}", "ts": i} for i in range(count) for phase in "BE"]


def test_what_depends_on_earlier_events_is_read_here(tmp_path: Path, chunk: Callable[[int], None]) -> None:
    chunk(300)
    outer = [{"ph": "B", "name": "outer", "pid": 1, "tid": 1, "ts": 0, "cat": "cpu_op"}]
    closed = [{"ph": "E", "pid": 1, "tid": 1, "ts": 99}]
    path = write(tmp_path / "rank0.json", [*outer, *spans(50), *closed])
    assert_same(path.read_bytes())
    assert len(read_trace(path).events) == 51


def test_the_limit_on_events_holds(
    tmp_path: Path, chunk: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk(300)
    monkeypatch.setenv("OVERLAPLAB_MAX_EVENTS", "20")
    text = write(tmp_path / "rank0.json", [op("mm", i, i + 1) for i in range(50)]).read_bytes()
    executor = Apart()
    line = content(text, executor)
    assert line == content(text)
    assert "raise the limit with OVERLAPLAB_MAX_EVENTS=40" in str(line)
    assert executor.accepted


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes decode however small a file is, in chunks of 64 KB."""
    monkeypatch.setattr(reading, "WORTH_BYTES", 0)
    monkeypatch.setattr(reading, "_processors", lambda: 2)
    monkeypatch.setattr(inflate, "CHUNK_BYTES", 1 << 16)


class Dying:
    """An executor whose worker is killed at the third job."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.jobs = 0

    def submit(self, *args: Any) -> Future[Any]:
        self.jobs += 1
        future = self.executor.submit(os._exit, 9) if self.jobs == 3 else self.executor.submit(*args)
        future.exception(LONG_S)  # so that the first ones are done while the parent waits
        return future


def test_a_killed_worker_costs_nothing(gpu_trace: Path, chunk: Callable[[int], None]) -> None:
    from loky import ProcessPoolExecutor

    chunk(1 << 12)
    text = gpu_trace.read_bytes()
    with ProcessPoolExecutor(1) as executor:
        dying: Any = Dying(executor)
        assert content(text, dying) == content(text)
    assert dying.jobs > 3


@pytest.mark.usefixtures("forced")
def test_one_large_file_is_decoded_by_processes(gpu_trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Decoders | None] = []

    def spy(*args: Any, decoders: Decoders | None, **kwargs: Any) -> Any:
        seen.append(decoders)
        assert decoders is not None
        assert decoders.executor.submit(os.getpid).result(LONG_S) != os.getpid()  # the workers have started
        return read_trace(*args, decoders=decoders, **kwargs)

    monkeypatch.setattr(reading, "read_trace", spy)
    events = load_run(gpu_trace, cache=False).traces[0].events
    assert len(seen) == 1
    assert_frame_equal(events, read_trace(gpu_trace).events)


@pytest.mark.usefixtures("forced")
def test_threads_share_one_pool(gpu_trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "loky", None)  # an import would raise
    with reading._DECODING:  # as while another thread's file is decoded
        assert len(load_run(gpu_trace, cache=False).traces) == 1


PROGRAM = """
import sys
from overlaplab.load import reading
import overlaplab
print('begins')
reading.WORTH_BYTES, reading._processors = 0, lambda: 2
print(len(overlaplab.load_run({path!r}, cache=False).traces), 'loky' in sys.modules)
"""


@pytest.mark.parametrize("as_file", [True, False])
def test_a_program_without_a_guard_runs_once(gpu_trace: Path, tmp_path: Path, as_file: bool) -> None:
    program = PROGRAM.format(path=str(gpu_trace))
    (tmp_path / "program.py").write_text(program)
    command = [str(tmp_path / "program.py")] if as_file else ["-c", program]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=LONG_S)
    assert (done.stdout, done.stderr) == ("begins\n1 True\n", "")


ENDLESS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a test run in the background would ignore
from overlaplab.load import reading
from overlaplab.load.file import inflate, portions
reading.WORTH_BYTES, reading._processors, inflate.CHUNK_BYTES = 0, lambda: 2, 1 << 12
gather = portions._gather_portions
def gather_and_tell(*args):
    for number, step in enumerate(gather(*args)):
        if number == 2:
            print('decoding', flush=True)
        yield step
portions._gather_portions = gather_and_tell
import overlaplab
while True:
    overlaplab.load_run({path!r}, cache=False)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_reader(how: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    script("benchmarks/_kineto.py").write(path, events=40_000, ranks=2)
    command = [sys.executable, "-c", ENDLESS.format(path=str(path))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"decoding\n"
        workers = psutil.Process(reader.pid).children(recursive=True)
        assert len(workers) >= 2
        os.killpg(reader.pid, how) if how == signal.SIGINT else reader.kill()
        until = time.monotonic() + LONG_S
        while any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers):
            assert time.monotonic() < until
            time.sleep(0.1)
        reader.kill()


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupt_is_the_readers_to_act_on() -> None:
    """A worker that it ended while it held the lock of their results made the reader wait for good."""
    with ProcessPoolExecutor(1, initializer=portions.end_with_parent, initargs=(os.getpid(),)) as executor:
        worker = executor.submit(os.getpid).result()
        os.kill(worker, signal.SIGINT)
        assert executor.submit(os.getpid).result() == worker


def test_workers_wait_for_no_pandas() -> None:
    program = "import sys, overlaplab.load.file.portions; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG_S)
    assert (done.stdout, done.stderr) == ("False\n", "")
