"""Commands as functions: `convert`, `diff`, `verify`, `sign`, `fetch`, and statistics."""

from __future__ import annotations

import dataclasses
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from stored_formats import bits, native_folder, random_tensors

import weightloom as wl


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    tensors = {"layers.0.w": torch.ones(4, 4), "layers.1.w": torch.zeros(4, 4), "head.w": torch.full((2,), 3.0)}
    save_file(tensors | {"steps": torch.tensor(3)}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


@pytest.mark.parametrize("to", ["hf", "native", "dcp"])
def test_conversions_keep_every_bit(to: Any, tmp_path: Path) -> None:
    tensors = random_tensors()
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = wl.open(tmp_path / "model.safetensors")
    made = wl.convert(checkpoint, tmp_path / "new", to=to)
    assert (made.target, made.tensors, made.nbytes) == (str(tmp_path / "new"), len(tensors), checkpoint.nbytes)
    assert made.fingerprint == checkpoint.fingerprint()
    assert made.skipped == ()
    for name, tensor in wl.open(tmp_path / "new").load().items():
        assert tensor.dtype == tensors[name].dtype
        assert bits(tensor) == bits(tensors[name])
    if to == "dcp":
        import torch.distributed.checkpoint as dcp

        into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        dcp.load(into, checkpoint_id=tmp_path / "new", no_dist=True)
        assert all(bits(tensor) == bits(tensors[name]) for name, tensor in into.items())


def test_conversions_take_the_options_of_the_command(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "new"
    made = wl.convert(model, target, to="hf", dtype=torch.bfloat16, shard_size=64, include="layers.*", exclude=["*.1.*"])
    assert made.tensors == 1
    assert load_file(target / "model.safetensors")["layers.0.w"].dtype == torch.bfloat16
    made = wl.convert(model, tmp_path / "whole", to="hf", dtype="bf16", shard_size="64B")
    assert made.assets == ("config.json",)
    assert len(list((tmp_path / "whole").glob("model-*.safetensors"))) > 1
    assert wl.open(tmp_path / "whole")["steps"].dtype == "i64"
    torch.save({"student": {"w": torch.ones(2)}, "teacher": {"w": torch.zeros(2)}, "epoch": 1}, tmp_path / "state.pt")
    made = wl.convert(tmp_path / "state.pt", tmp_path / "student", to="hf", prefix="student")
    assert list(wl.open(tmp_path / "student")) == ["w"]
    assert set(made.skipped) == {"epoch", "teacher.w"}
    assert repr(made) == f"<Conversion {tmp_path / 'student'}: 1 tensor, 8 B, 2 skipped>"


def test_conversions_say_what_they_chose(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(2)}, "epoch": 1}, tmp_path / "state.pt")
    made = wl.convert(tmp_path / "state.pt", tmp_path / "new", to="hf")
    assert any("converting the model below `model`" in note for note in made.notes)


def test_wrong_conversions_are_exceptions(model: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").write_text("mine")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"to": "onnx"}, "onnx"),
        ({"to": "hf", "dtype": "bf17"}, "cannot use the dtype `bf17`"),
        ({"to": "hf", "include": "nothing.*"}, "no tensor matches the patterns"),
        ({"to": "hf", "include": "[a"}, "invalid pattern"),
        ({"to": "hf", "shard_size": "5 parsecs"}, "invalid size `5 parsecs`"),
        ({"to": "hf", "prefix": "missing"}, "missing"),
    ]
    for options, reason in wrong:
        with pytest.raises(wl.UserError) as raised:
            wl.convert(model, tmp_path / "new", **options)
        assert reason in raised.value.message
        assert not (tmp_path / "new").exists()
    with pytest.raises(wl.UserError):
        wl.convert(model, tmp_path / "there", to="hf")
    assert (tmp_path / "there/file").read_text() == "mine"
    with pytest.raises(wl.UserError):
        wl.convert(tmp_path / "missing", tmp_path / "new", to="hf")


def test_names_that_look_like_options_are_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_file({"w": torch.ones(2)}, "--help.safetensors")
    assert wl.verify("--help.safetensors").tensors == 1
    assert wl.convert("--help.safetensors", "--to", to="hf").target == "--to"
    assert wl.diff("--help.safetensors", "--to").equal


def test_a_diff_has_every_difference(tmp_path: Path) -> None:
    one = {
        "same": torch.ones(3), "values": torch.tensor([1.0, 2.0, 4.0]), "dtype": torch.ones(2), "gone": torch.ones(1),
        "shape": torch.ones(2, 3), "nan": torch.tensor([1.0, 2.0]), "zero": torch.tensor([0.0, 1.0]),
        "also nan": torch.tensor([torch.nan]),
    }  # fmt: skip
    two = {
        "same": torch.ones(3), "values": torch.tensor([1.0, 2.5, 4.0]), "dtype": torch.ones(2, dtype=torch.float16),
        "new": torch.ones(1), "shape": torch.ones(3, 2), "nan": torch.tensor([torch.nan, 2.0]),
        "zero": torch.tensor([-0.0, 1.0]), "also nan": torch.tensor([torch.nan]),
    }  # fmt: skip
    save_file(one, tmp_path / "one.safetensors")
    save_file(two, tmp_path / "two.safetensors")
    found = wl.diff(tmp_path / "one.safetensors", wl.open(tmp_path / "two.safetensors"))
    assert not found.equal
    assert (found.only_first, found.only_second, found.other) == (("gone",), ("new",), ())
    assert found.identical == ("also nan", "same")
    assert found.changed == {
        "values": wl.TensorDiff("values", "values", "f32", "f32", 1, 0.5, 0.2),
        "dtype": wl.TensorDiff("dtype", "dtype", "f32", "f16", 0, 0.0, 0.0),
        "shape": wl.TensorDiff("shape", "shape", "[2, 3]", "[3, 2]"),
        "nan": wl.TensorDiff("nan", "values", "f32", "f32", 1, math.inf, math.inf),
        "zero": wl.TensorDiff("zero", "dtype", "f32", "f32", 0, 0.0, 0.0),
    }
    assert "2 of 9 tensors are identical, 2 with other values" in repr(found)
    assert "largest difference: inf in `nan`" in repr(found)
    with pytest.raises(TypeError, match=r"diff\.equal"):
        bool(found)
    html = found._repr_html_()
    for text in ["only in the first", "shape [2, 3] and [3, 2]", "5.000e-01", "f32 and f16, same values"]:
        assert text in html


def test_a_diff_of_equal_checkpoints_says_so(tmp_path: Path) -> None:
    tensors = random_tensors()
    native = native_folder(tmp_path, tensors)
    found = wl.diff(tmp_path / "model.safetensors", native)
    assert found.equal
    assert set(found.identical) == set(tensors)
    assert repr(found) == f"<Diff identical: {len(tensors)} tensors>"
    assert "<table" not in found._repr_html_()


def test_verification_finds_a_flipped_bit(tmp_path: Path) -> None:
    native = native_folder(tmp_path, {"w": torch.ones(100)})
    good = wl.verify(native)
    assert (good.location, good.format, good.tensors, good.nbytes) == (str(native), "native", 1, 400)
    assert good.has_checksums and good.signed_with is None
    assert repr(good) == f"<Verification {native}: native, 1 tensor, 400 B, checksums match>"
    [file] = native.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(wl.CheckFailed) as raised:
        wl.verify(native)
    assert "damaged in 1 chunk" in raised.value.message and "`w`" in raised.value.message


def test_signatures_are_checked_with_the_key(tmp_path: Path) -> None:
    native = native_folder(tmp_path, {"w": torch.ones(100)})
    keys = {}
    for name in ["mine", "other"]:
        private, public = tmp_path / f"{name}.pem", tmp_path / f"{name}.pub"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
        subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
        keys[name] = (private, public)
    with pytest.raises(wl.CheckFailed):
        wl.verify(native, key=keys["mine"][1])
    signed = wl.sign(native, key=keys["mine"][0])
    assert signed.files >= 2 and signed.nbytes > 400
    assert wl.verify(native, key=keys["mine"][1]).signed_with == signed.key
    with pytest.raises(wl.UserError):
        wl.verify(native, key=keys["other"][1])
    with pytest.raises(wl.UserError, match="signatures cover folders"):
        wl.sign(tmp_path / "model.safetensors", key=keys["mine"][0])


def test_statistics_count_what_is_not_finite(tmp_path: Path) -> None:
    values = torch.tensor([0.0, -2.0, 4.0, torch.nan, torch.inf, -0.0])
    save_file({"w": values, "none": torch.empty(0)}, tmp_path / "model.safetensors")
    stats = wl.open(tmp_path / "model.safetensors").stats()
    assert stats["w"] == wl.TensorStats(minimum=-2.0, maximum=None, mean=0.5, nan=1, infinite=1, zero=2)
    assert stats["none"] == wl.TensorStats(minimum=None, maximum=None, mean=None, nan=0, infinite=0, zero=0)


def test_cards_are_fetched_from_where_they_say(model: Path, tmp_path: Path) -> None:
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards/mine.yaml").write_text(f"name: mine\ncheckpoint: {model}\n")
    found = wl.fetch("mine", asset_dir=tmp_path / "cards")
    assert (found.name, found.location, found.commit, found.hashes_verified) == ("mine", str(model), None, None)
    with pytest.raises(wl.UserError) as raised:
        wl.fetch("mime", asset_dir=[tmp_path / "cards"], offline=True)
    assert "mine" in str(raised.value)


def test_results_cannot_be_changed(model: Path) -> None:
    found = wl.verify(model)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.tensors = 7  # type: ignore[misc]
