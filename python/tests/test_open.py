"""Opening checkpoints: every format, wrong names, damaged files, threads, forks, leaks, Ctrl-C."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from range_server import RangeServer
from safetensors.torch import save_file
from stored_formats import FORMATS, bits, random_tensor, torch_file, written

import weightloom as wl
from weightloom import _weightloom


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_with_the_same_bits(name: str, tmp_path: Path) -> None:
    path, tensors = written(name, tmp_path)
    checkpoint = wl.open(path)
    assert set(checkpoint) - {"transposed"} == set(tensors)
    loaded = checkpoint.load()
    for key, tensor in tensors.items():
        stored = checkpoint[key]
        assert stored.shape == tuple(tensor.shape), key
        for read in [stored.torch(), loaded[key]]:
            assert read.dtype == tensor.dtype, key
            assert read.shape == tensor.shape, key
            assert bits(read) == bits(tensor), key
        assert stored.to_bytes() == bits(tensor), key
    assert checkpoint.nbytes == sum(stored.nbytes for stored in checkpoint.values())
    assert checkpoint.num_parameters >= sum(tensor.numel() for tensor in tensors.values())


def test_views_of_torch_files_are_read_in_their_order(tmp_path: Path) -> None:
    cube = random_tensor(torch.float32, (3, 4, 5), 1)
    path = torch_file(tmp_path, {"cube": cube})
    assert bits(wl.open(path)["transposed"].torch()) == bits(cube.transpose(0, 2))


def test_quantized_tensors_are_decoded(tmp_path: Path) -> None:
    import gguf
    import numpy

    values = numpy.random.default_rng(0).standard_normal((8, 64), dtype=numpy.float32)
    kind = gguf.GGMLQuantizationType.Q8_0
    encoded = gguf.quants.quantize(values, kind)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("w", encoded, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = wl.open(tmp_path / "model.gguf")
    stored = checkpoint["w"]
    assert stored.quantization == "Q8_0"
    assert (stored.shape, stored.dtype, stored.stored_nbytes) == ((8, 64), "f32", 8 * 2 * 34)
    assert checkpoint.stored_nbytes < checkpoint.nbytes
    decoded = gguf.quants.dequantize(encoded, kind)
    assert stored[3:5, 32:40].numpy().tobytes() == decoded[3:5, 32:40].tobytes()


def test_a_checkpoint_is_a_mapping_and_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(2, 3), "b": torch.zeros(3, dtype=torch.bfloat16)}, path, metadata={"origin": "test"})
    checkpoint = wl.open(path)
    assert list(checkpoint) == ["b", "w"] and len(checkpoint) == 2
    assert "w" in checkpoint and "v" not in checkpoint and 1 not in checkpoint
    assert [stored.name for stored in checkpoint.values()] == ["b", "w"]
    assert checkpoint.get("v") is None
    assert checkpoint.location == str(path)
    assert (checkpoint.format, checkpoint.step, checkpoint.stated_fingerprint) == ("safetensors", None, None)
    assert checkpoint.metadata == {"origin": "test"}
    assert checkpoint.files == {"model.safetensors": path.stat().st_size}
    assert (checkpoint.nbytes, checkpoint.stored_nbytes, checkpoint.num_parameters) == (30, 30, 9)
    assert repr(checkpoint) == f"<Checkpoint {path}: safetensors, 2 tensors, 30 B>"
    assert checkpoint == checkpoint
    assert checkpoint != wl.open(path)
    assert len({checkpoint, checkpoint}) == 1


def test_a_native_checkpoint_states_its_step_and_fingerprint(quickstart: Path) -> None:
    run = quickstart / "pretrain"
    checkpoint = wl.open(run)
    assert checkpoint.format == "native"
    assert checkpoint.step == 4
    assert checkpoint.location == str(run / "checkpoints/step_4")
    assert checkpoint.stated_fingerprint == checkpoint.fingerprint()
    assert set(checkpoint.tensor_fingerprints()) == set(checkpoint)
    assert checkpoint.entries
    assert isinstance(checkpoint.value(checkpoint.entries[0]), (bytes, dict, list, int, float, str))
    html = checkpoint._repr_html_()
    assert "step 4" in html and str(checkpoint.stated_fingerprint) in html


def test_models_on_hugging_face_are_opened_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    root = tmp_path / "models--acme--tiny"
    snapshot = root / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs/main").write_text(commit)
    (snapshot / "config.json").write_text("{}")
    save_file({"w": torch.ones(2)}, snapshot / "model.safetensors")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    checkpoint = wl.open("hf://acme/tiny")
    assert checkpoint.location == str(snapshot)
    assert checkpoint["w"].torch().tolist() == [1.0, 1.0]
    assert wl.fetch("hf://acme/tiny", offline=True).commit == commit


def test_nested_state_comes_back_as_it_was(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "history": [{"loss": 1.5}, {"loss": torch.tensor(0.5)}],
        "epoch": 3,
        "note": "a note",
        "nothing": {},
    }
    torch.save(state, tmp_path / "state.pt")
    checkpoint = wl.open(tmp_path / "state.pt")
    found = checkpoint.state_dict()
    assert_same(found, json_like(state))
    # What torch's own functions take.
    optimizer.load_state_dict(found["optimizer"])
    assert set(checkpoint.load()) == set(checkpoint)
    assert checkpoint.value("epoch") == 3
    with pytest.raises(wl.MissingTensor) as missing:
        checkpoint.value("epoche")
    assert "has no entry `epoche`" in missing.value.message
    with pytest.raises(wl.MissingTensor) as missing:
        checkpoint.value("model.0.weight")
    assert missing.value.hint == "read the tensor `model.0.weight` with `checkpoint[name]`"


def test_dcp_keeps_lists_and_dicts_apart(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    state = {"model": {"w": torch.ones(2)}, "groups": [{"lr": 0.1, "decay": torch.zeros(1)}], "epoch": 3}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert_same(wl.open(tmp_path / "dcp").state_dict(), state)


def json_like(value: Any) -> Any:
    """Tuples as the lists that they come back as."""
    if isinstance(value, dict):
        return {key: json_like(child) for key, child in value.items()}
    return [json_like(child) for child in value] if isinstance(value, (list, tuple)) else value


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor) and found.dtype == expected.dtype and bits(found) == bits(expected)
    elif isinstance(expected, dict):
        assert isinstance(found, dict) and found.keys() == expected.keys()
        for key, child in expected.items():
            assert_same(found[key], child)
    elif isinstance(expected, list):
        assert isinstance(found, list) and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert (type(found), found) == (type(expected), expected)


def test_entries_in_one_place_are_refused() -> None:
    from weightloom._nested_state import nested

    for paths in [{"a": ["a"], "b": ["a", "c"]}, {"b": ["a"], "a": ["a", "c"]}, {"a": ["x"], "b": ["x"]}, {"a": [None]}]:
        with pytest.raises(wl.CheckFailed, match="two of them are in the place of"):
            nested({"a": 1, "b": 2}, paths)


def test_only_optimizers_have_numbers_as_keys() -> None:
    from weightloom._nested_state import nested

    entries = {"s.0.m": 1, "s.7.m": 2, "p.0": 3, "p.1": 4, "l.0": 5, "l.2": 6, "e.00.m": 7}
    paths = {name: name.split(".") for name in entries} | {"l.0": ["l", 0], "l.2": ["l", 2]}
    found = nested(entries, paths)
    # A list with gaps, as a part of a checkpoint may have it, is none.
    assert found["l"] == {0: 5, 2: 6}
    assert found["s"] == {0: {"m": 1}, 7: {"m": 2}}
    # Parameters of a `ParameterList`, and what is no number.
    assert found["p"] == {"0": 3, "1": 4}
    assert found["e"] == {"00": {"m": 7}}


def test_only_floating_point_tensors_are_converted(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"f32": torch.tensor([1.0, 1.00390625]), "f8": torch.ones(2).to(torch.float8_e5m2), "i64": torch.arange(2)}
    save_file(tensors | {"bool": torch.tensor([True, False])}, path)
    loaded = wl.open(path).load(dtype=torch.bfloat16)
    assert {name: tensor.dtype for name, tensor in loaded.items()} == {
        "f32": torch.bfloat16, "f8": torch.bfloat16, "i64": torch.int64, "bool": torch.bool,
    }  # fmt: skip
    assert bits(loaded["f32"]) == bits(tensors["f32"].to(torch.bfloat16))
    assert wl.open(path).load(device="meta")["f32"].device.type == "meta"


def test_wrong_names_are_answered_with_near_ones(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"model.embed.weight": torch.ones(2)}, path)
    checkpoint = wl.open(path)
    with pytest.raises(wl.MissingTensor) as missing:
        checkpoint["model.embed.wieght"]
    assert missing.value.hint == "did you mean `model.embed.weight`?"
    assert isinstance(missing.value, KeyError)
    with pytest.raises(wl.MissingTensor):
        checkpoint[0]  # type: ignore[index]


def header(text: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text + body


def hostile_pickle(folder: Path) -> Path:
    class Program:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {folder / 'executed'}",)

    torch.save({"w": Program()}, folder / "model.pt")
    return folder / "model.pt"


def safetensors(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / f"{name}.safetensors"
        path.write_bytes(content)
        return path

    return write


def truncated(folder: Path) -> Path:
    path = folder / "truncated.safetensors"
    save_file({"w": torch.ones(100)}, path)
    os.truncate(path, path.stat().st_size - 1)
    return path


def folder_without_anything(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


DAMAGED: list[tuple[type[wl.WeightloomError], Callable[[Path], Path]]] = [
    (wl.CheckFailed, truncated),
    (wl.CheckFailed, safetensors("short", b"\0\0\0")),
    (wl.CheckFailed, safetensors("long", struct.pack("<Q", 1 << 60))),
    (wl.CheckFailed, safetensors("garbage", header(b"\xff\xfe{"))),
    (wl.CheckFailed, safetensors("past", header(b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'))),
    (wl.CheckFailed, safetensors("odd", header(b'{"w":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}', b"1234"))),
    (wl.CheckFailed, safetensors("forged", header(b'{"a\\nhint: b":{"dtype":"F9","shape":[],"data_offsets":[0,4]}}'))),
    (wl.CheckFailed, hostile_pickle),
    (wl.UserError, folder_without_anything),
    (wl.UserError, lambda folder: folder / "nothing.safetensors"),
    (wl.UserError, lambda folder: Path(__file__)),
    (wl.UserError, lambda folder: Path("ftp://nowhere/model.safetensors")),
]


@pytest.mark.parametrize("number", range(len(DAMAGED)))
def test_errors_are_those_of_the_command(number: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kind, write = DAMAGED[number]
    path = write(tmp_path)
    with pytest.raises(wl.WeightloomError) as raised:
        wl.open(path)
    assert type(raised.value) is kind
    assert not (tmp_path / "executed").exists()
    code = _weightloom.run(["weightloom", "inspect", str(path)])
    assert code == {wl.CheckFailed: 1, wl.UserError: 2}[kind]
    # Names with line ends could forge a hint; the terminal indents them.
    printed = capfd.readouterr().err.replace("\n  hint:", "\nhint:")
    assert printed == f"error: {raised.value}\n"


def test_a_card_that_does_not_exist_is_answered_with_a_near_one() -> None:
    with pytest.raises(wl.UserError) as raised:
        wl.open("smollm2_135n")
    assert "smollm2_135m" in str(raised.value)


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    for name in [os.fsdecode(os.fsencode(tmp_path) + b"/\xff"), b"bytes", tmp_path / "a\0b"]:
        with pytest.raises(wl.UserError):
            wl.open(name)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        wl.open(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(8,), (400, 300)])
def test_a_file_that_was_replaced_is_not_read(size: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    old, new = random_tensor(torch.float32, size, 1), random_tensor(torch.float32, size, 2)
    save_file({"w": old}, path)
    checkpoint = wl.open(path)
    read = checkpoint["w"].torch()
    save_file({"longer name": torch.zeros(3), "w": new}, tmp_path / "new.safetensors")
    os.replace(tmp_path / "new.safetensors", path)
    target = torch.empty(size)
    accesses: list[Callable[[], object]] = [
        checkpoint["w"].torch, checkpoint["w"][1:].torch, checkpoint.load, checkpoint.fingerprint,
        lambda: checkpoint["w"].read_into(target),
    ]  # fmt: skip
    for access in accesses:
        with pytest.raises(wl.OperationalError) as raised:
            access()
        assert "it changed after the checkpoint was opened" in raised.value.message
        assert raised.value.hint == "open the checkpoint again"
    # What was read before stays.
    assert bits(read) == bits(old)
    assert bits(wl.open(path)["w"].torch()) == bits(new)


def test_a_file_that_was_rewritten_or_removed_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(4), "b": torch.zeros(4)}, path)
    checkpoint = wl.open(path)
    content = path.read_bytes()
    # The same file, as long as before.
    path.write_bytes(content.replace(b'"a"', b'"c"'))
    os.utime(path, ns=(1, 1))
    with pytest.raises(wl.OperationalError, match="changed after"):
        checkpoint["b"].torch()
    checkpoint = wl.open(path)
    path.unlink()
    with pytest.raises(wl.UserError, match="cannot find `model.safetensors`"):
        checkpoint["b"].torch()


def test_a_checkpoint_does_not_depend_on_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    tensor = random_tensor(torch.float32, (400, 300), 1)
    save_file({"w": tensor, "v": torch.ones(2)}, tmp_path / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    checkpoint = wl.open("model.safetensors")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert checkpoint.location == str(tmp_path / "model.safetensors")
    assert bits(checkpoint["w"].torch()) == bits(tensor)
    assert checkpoint["v"].torch().tolist() == [1.0, 1.0]
    assert pickle.loads(pickle.dumps(checkpoint)).location == checkpoint.location
    assert wl.verify(checkpoint).tensors == 2


def test_checkpoints_and_tensors_are_pickled(tmp_path: Path) -> None:
    tensor = random_tensor(torch.float32, (5, 7), 1)
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    checkpoint = wl.open(tmp_path / "model.safetensors")
    again, part = pickle.loads(pickle.dumps((checkpoint, checkpoint["w"][1:3, 2])))
    assert list(again) == ["w"]
    assert bits(again["w"].torch()) == bits(tensor)
    assert part.shape == (2,)
    assert bits(part.torch()) == bits(tensor[1:3, 2])


def files_open_in(folder: Path) -> list[str]:
    """The files of a folder that this process has open or mapped."""
    opened = [os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if is_open(number)]
    mapped = [line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()]
    return [path for path in opened + mapped if path.startswith(str(folder))]


def is_open(number: str) -> bool:
    """The file that lists the others is closed by now."""
    return os.path.lexists(f"/proc/self/fd/{number}")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_thousand_opens_leak_nothing(tmp_path: Path) -> None:
    # One tensor is read, one mapped.
    save_file({"w": torch.ones(100), "long": torch.ones(256, 256)}, tmp_path / "model.safetensors")

    def use() -> None:
        checkpoint = wl.open(tmp_path / "model.safetensors")
        assert checkpoint["w"][3:5].torch().sum() == 2
        assert checkpoint["long"].numpy()[7, 7] == 1
        target = torch.empty(100)
        checkpoint["w"].read_into(target)
        with pytest.raises(wl.MissingTensor):
            checkpoint["v"]
        with pytest.raises(wl.UserError):
            wl.open(tmp_path / "missing.safetensors")

    for _ in range(200):
        use()
    gc.collect()
    before, files = resident_bytes(), len(os.listdir("/proc/self/fd"))
    for _ in range(1000):
        use()
    assert files_open_in(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == files
    # A leak of an array of 100 numbers, or of the text of an error, for each open would be as much.
    assert resident_bytes() - before < 400_000


def test_open_checkpoints_hold_no_files_until_they_are_read(tmp_path: Path) -> None:
    save_file({"w": torch.ones(100)}, tmp_path / "model.safetensors")
    checkpoint = wl.open(tmp_path / "model.safetensors")
    assert checkpoint["w"].shape == (100,)
    assert files_open_in(tmp_path) == []
    checkpoint["w"].torch()
    assert files_open_in(tmp_path) == [str(tmp_path / "model.safetensors")]
    del checkpoint
    assert files_open_in(tmp_path) == []


def test_eight_threads_read_one_checkpoint(tmp_path: Path) -> None:
    tensors = {f"w{number}": random_tensor(torch.float32, (200, 150), number) for number in range(16)}
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = wl.open(tmp_path / "model.safetensors")
    problems: queue.Queue[object] = queue.Queue()
    start = threading.Barrier(8)

    def work(turn: int) -> None:
        try:
            start.wait()
            for step in range(48):
                name = f"w{(turn + step) % 16}"
                target = torch.empty(200, 150)
                checkpoint[name].read_into(target)
                assert bits(target) == bits(tensors[name])
                assert bits(checkpoint[name][turn:, 3:9].torch()) == bits(tensors[name][turn:, 3:9])
                assert bits(checkpoint[name].torch()) == bits(tensors[name])
            assert len(checkpoint.fingerprint()) > 8
        except BaseException as error:
            problems.put(error)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems.empty(), problems.get()


def sparse_file(path: Path, count: int) -> Path:
    """A file with one tensor of zeros, which takes no space on the disk."""
    text = json.dumps({"w": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}).encode()
    path.write_bytes(header(text))
    os.truncate(path, len(header(text)) + 4 * count)
    return path


def test_other_python_threads_run_during_a_long_read(tmp_path: Path) -> None:
    checkpoint = wl.open(sparse_file(tmp_path / "model.safetensors", 1 << 28))
    counted = 0
    is_done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not is_done.wait(0.001):
            counted += 1

    counter = threading.Thread(target=count)
    counter.start()
    began, before = time.monotonic(), counted
    checkpoint.fingerprint()
    seconds, during = time.monotonic() - began, counted - before
    is_done.set()
    counter.join()
    # With the GIL held, it would count once.
    assert during >= 10 * min(seconds, 1.0), (during, seconds)
    assert seconds > 0.02


def test_ctrl_c_ends_a_long_fingerprint(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "model.safetensors", 1 << 36)
    program = """
import sys, time, weightloom as wl
checkpoint = wl.open(sys.argv[1])
print("begins", flush=True)
try:
    checkpoint.fingerprint()
except KeyboardInterrupt:
    print("interrupted")
"""
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begins\n"
            # 256 GiB take longer than this.
            time.sleep(0.5)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=20)
        finally:
            process.kill()
    assert output == "interrupted\n"
    assert process.returncode == 0


def in_fork(work: Callable[[], object]) -> object:
    """What a function returns in a forked process, or the error that it raises there."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def run() -> None:
        try:
            send.send(work())
        except BaseException as error:
            send.send(error)

    process = context.Process(target=run)
    process.start()
    assert receive.poll(30), "the forked process hangs"
    result: object = receive.recv()
    process.join(10)
    assert process.exitcode == 0
    return result


def test_a_forked_process_reads_a_local_checkpoint(tmp_path: Path) -> None:
    tensor = random_tensor(torch.float32, (400, 300), 1)
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    checkpoint = wl.open(tmp_path / "model.safetensors")
    fingerprint = checkpoint.fingerprint()
    assert in_fork(checkpoint["w"].to_bytes) == bits(tensor)
    assert in_fork(checkpoint["w"][:, 7].to_bytes) == bits(tensor[:, 7])
    assert in_fork(checkpoint.fingerprint) == fingerprint
    assert in_fork(lambda: wl.verify(checkpoint).tensors) == 1


def test_a_forked_process_opens_urls_again(tmp_path: Path) -> None:
    tensor = random_tensor(torch.float32, (400, 300), 1)
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    with RangeServer(tmp_path) as server:
        url = f"{server.url}/model.safetensors"
        checkpoint = wl.open(url)
        assert checkpoint.location == url
        assert bits(checkpoint["w"].torch()) == bits(tensor)
        assert checkpoint["w"][1:3, 5].to_bytes() == bits(tensor[1:3, 5])
        pickled = pickle.dumps(checkpoint["w"])
        refused = in_fork(checkpoint["w"].to_bytes)
        assert isinstance(refused, wl.UserError)
        assert refused.message == f"cannot read `{url}` in a forked process: connections do not survive a fork"
        assert refused.hint == "open it in the new process"
        assert isinstance(in_fork(checkpoint.fingerprint), wl.UserError)
        assert in_fork(lambda: wl.open(url)["w"].to_bytes()) == bits(tensor)
        assert in_fork(lambda: pickle.loads(pickled).to_bytes()) == bits(tensor)
        assert in_fork(lambda: wl.verify(url).tensors) == 1
        # Here, all is as before.
        assert checkpoint["w"].to_bytes() == bits(tensor)
        with pytest.raises(wl.UserError):
            wl.open(f"{server.url}/missing.safetensors")


def test_what_does_not_fit_into_memory_is_an_exception(tmp_path: Path) -> None:
    # Converted, so that it cannot be mapped.
    path = sparse_file(tmp_path / "model.safetensors", 1 << 30)
    program = """
import resource, sys, weightloom as wl
checkpoint = wl.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
try:
    checkpoint["w"].numpy(dtype="f64")
except MemoryError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == f"cannot allocate {8 << 30} bytes for `w`\n"
