"""The rows of the doctor's table for clients of gRPC, which get what those of HTTP get.

A call of gRPC is served as the same call over HTTP, so what was done over HTTP in binary tells of both.
Not here: speaking gRPC.
"""

from gateway.client.fronts import has_grpc
from gateway.doctor.report import Report

_ASK = "ask for "


def add_rows(report: Report) -> None:
    """Add what clients of gRPC can do, from the rows that *report* has of HTTP."""
    over_http = dict(report.abilities)
    asked = {what.removeprefix(_ASK): words for what, words in over_http.items() if what.startswith(_ASK)}
    refused = [call for call, words in asked.items() if words == "no"]
    infer = over_http.get("infer in binary", "not found out")
    if infer.startswith("yes"):
        infer = "yes, as in binary; FP16 and BF16 as raw contents only, as tritonclient sends them"
    before = "" if has_grpc() else "pip install 'tensor-gateway[grpc]', and "
    report.can("use gRPC", f"{before}set `grpc: ADDRESS`; the rows below follow from those of HTTP above")
    report.can("gRPC: infer, stream", infer)
    report.can("gRPC: ask", f"as over HTTP: all but {', '.join(refused)}" if refused else "as over HTTP: all")
    report.can("gRPC: repository, stats", "if the server has them over HTTP, which was not tried")
    report.can("gRPC: shared memory, traces", "no")
