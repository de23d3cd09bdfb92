"""The Triton kernels compile for GPUs; that needs Triton's compiler, but no GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
backends = pytest.importorskip("triton.backends").backends
pytestmark = [
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this is the interpreter"),
    pytest.mark.skipif("nvidia" not in backends, reason="this Triton compiles for other GPUs"),
]

INTEGERS = ("count", "size", "stride", "groups", "center_stride", "most")
ONE = dict.fromkeys(("count", "size", "stride"), 1)
"""What a launch makes constants of: integers that are 1."""

SAMPLE = ("planes", "nearest", "lengths", "start", "chosen", "count", "size", "stride")
NEIGHBOURS = ("planes", "centers", "lengths", "found", "groups", "size", "center_stride", "stride", "most")


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    ("kernel", "arguments", "kind", "constants"),
    [
        ("sample", SAMPLE, "fp32", {"TILE": 1024}),
        ("sample", SAMPLE, "fp64", {"TILE": 1024}),
        ("sample", SAMPLE, "fp32", {"TILE": 1024, **ONE}),
        ("neighbours", NEIGHBOURS, "fp32", {"QUERIES": 4, "WIDTH": 1}),
        ("neighbours", NEIGHBOURS, "fp32", {"QUERIES": 4, "WIDTH": 32}),
    ],
)
def test_kernels_compile_and_round_each_operation(
    capability: int,
    kernel: str,
    arguments: tuple[str, ...],
    kind: str,
    constants: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from pointvit.ops import triton_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    floats = ("planes", "nearest", "centers")
    types = {n: "i32" if n in INTEGERS else f"*{kind if n in floats else 'i64'}" for n in arguments}
    source = ASTSource(
        getattr(triton_kernels, kernel), types | dict.fromkeys(constants, "constexpr"), constants
    )
    options = {"enable_fp_fusion": False}
    code = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm
    assert len(code["cubin"]) > 1000
    assert f"target sm_{capability}" in code["ptx"]
    assert "fma." not in code["ptx"], "fused, distances would have other last bits than elsewhere"
