"""Runs the Triton server that the wheel of nvidia-pytriton holds, with models that hand their input back.

python triton_server.py FOLDER PORT: makes the models and their backend under FOLDER and becomes the server, which
says `Started HTTPService` when it is ready.
"""

import os
import sys
from pathlib import Path

import pytriton

SERVER = Path(pytriton.__file__).parent / "tritonserver"
SITE_PACKAGES = Path(pytriton.__file__).parent.parent

DATATYPES = {
    "BOOL": "TYPE_BOOL",
    "UINT8": "TYPE_UINT8",
    "UINT16": "TYPE_UINT16",
    "UINT32": "TYPE_UINT32",
    "UINT64": "TYPE_UINT64",
    "INT8": "TYPE_INT8",
    "INT16": "TYPE_INT16",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "FP16": "TYPE_FP16",
    "FP32": "TYPE_FP32",
    "FP64": "TYPE_FP64",
    "BF16": "TYPE_BF16",
    "BYTES": "TYPE_STRING",
}

MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([t for name in %r for t in self.handed_back(r, name)]) for r in requests]

    def handed_back(self, request, name):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        if "BF16" in %r:
            return [pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack())]  # numpy has no such type
        return [pb_utils.Tensor(name, tensor.as_numpy())]
"""


def add_model(
    repository: Path, name: str, datatype: str, dims: str, tensors: tuple[str, ...] = ("x",), batch: int = 0
) -> None:
    """A model whose outputs have the names and the values of its inputs."""
    rows = "".join(f'{{name: "{tensor}" data_type: {DATATYPES[datatype]} dims: {dims}}}, ' for tensor in tensors)
    described = f'name: "{name}"\nbackend: "python"\nmax_batch_size: {batch}\n'
    described += "".join(f"{side}: [{rows.rstrip(', ')}]\n" for side in ("input", "output"))
    described += "instance_group: [{kind: KIND_CPU count: 1}]\n"
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(described)
    (repository / name / "1" / "model.py").write_text(MODEL % (tensors, datatype))


def main(folder: str, port: str) -> None:
    repository, backend = Path(folder) / "models", Path(folder) / "backends" / "python"
    for datatype in DATATYPES:
        add_model(repository, datatype.lower(), datatype, "[-1, -1]")
    add_model(repository, "pair", "FP32", "[-1]", ("x", "y"))
    add_model(repository, "batched", "INT32", "[-1]", batch=8)
    add_model(repository, "row", "INT32", "[4]")
    add_model(repository, "rows", "INT32", "[-1, 4]")
    add_model(repository, "word", "BYTES", "[1]")

    backend.mkdir(parents=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = SERVER / "python_backend_stubs" / version / "triton_python_backend_stub"
    for part in [*(SERVER / "backends" / "python").glob("*.*"), stub]:
        (backend / part.name).symlink_to(part)
    options = {
        "model-repository": repository,
        "backend-directory": backend.parent,
        "http-address": "127.0.0.1",
        "http-port": port,
        "allow-grpc": "false",
        "allow-metrics": "false",
        "allow-gpu-metrics": "false",
    }
    os.environ["PYTHONPATH"] = str(SITE_PACKAGES)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    program = SERVER / "bin" / "tritonserver"
    os.execv(program, [str(program), *(f"--{name}={value}" for name, value in options.items())])


main(*sys.argv[1:])
