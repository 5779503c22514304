"""Servers for sound and images, and those that run anything: Cog, Replicate, Gradio."""

import base64
import json

from tests.formats.language import written
from tests.formats.stand_in import (
    DETAIL,
    ERROR,
    Adapter,
    Document,
    Format,
    Strict,
    anything,
    digest,
    integer,
    number,
    share,
    text,
    vector,
)
from tests.formats.vectors import DETAIL_TEXT, a_text


def transcription(body: Document) -> Document:
    DETAIL.members(body, {"audio": text, "language?": text, "temperature?": number})
    spoken = [body["audio"], body.get("language"), body.get("temperature")]
    n_segments = 1 + digest(spoken) % 4
    segments: list[Document] = [
        {"id": index, "start": 2.5 * index, "end": 2.5 * (index + 1), "text": written(index, spoken)}
        for index in range(n_segments)
    ]
    return {
        "text": " ".join(each["text"] for each in segments),
        "segments": segments,
        "language": body.get("language", "en"),
    }


def cog(body: Document) -> Document:
    """Its prediction says in a 200 that it failed."""
    DETAIL.members(body, {"input": anything, "id?": text})
    given = DETAIL.members(body["input"], {"text": text, "scale?": number}, "input")
    failed = "boom" in given["text"]
    return {
        "input": given,
        "output": None if failed else share(given["text"], given.get("scale")),
        "id": None,
        "created_at": "2026-01-01T00:00:00.000000+00:00",
        "status": "failed" if failed else "succeeded",
        "error": "the text cannot be scaled" if failed else None,
        "metrics": None if failed else {"predict_time": 0.25},
    }


def replicate(body: Document) -> Document:
    """Its output is a list of pieces of text, as many as there are."""
    DETAIL_TEXT.members(body, {"version": text, "input": anything})
    given = DETAIL_TEXT.members(body["input"], {"prompt": text, "top_k?": integer}, "input")
    n_pieces = 2 + digest(given) % 3
    return {
        "id": f"{digest(body):x}",
        "version": body["version"],
        "input": given,
        "logs": "",
        "output": [written(index, given["prompt"], given.get("top_k")) for index in range(n_pieces)],
        "data_removed": False,
        "error": None,
        "status": "succeeded",
        "urls": {"get": "https://api.example/v1/predictions/x"},
    }


def gradio(body: Document) -> Document:
    """A list of a text and a number in, a label with its confidences out."""
    DETAIL_TEXT.members(body, {"data": anything, "fn_index?": integer, "session_hash?": text})
    data = body["data"]
    if not isinstance(data, list) or len(data) != 2 or not text(data[0]) or not number(data[1]):
        DETAIL_TEXT.refuse("expected a text and a number in data")
    scores = sorted(((share(name, *data), name) for name in ("cat", "dog", "kiwi")), reverse=True)
    confidences = [{"label": name, "confidence": score} for score, name in scores]
    label = {"label": scores[0][1], "confidences": confidences}
    return {"data": [label], "is_generating": False, "duration": 0.125, "average_duration": 0.125}


A1111 = Strict(422, lambda words: {"error": "ValidationError", "detail": words, "body": "", "errors": words})


def a1111(body: Document) -> Document:
    """The image is base64, and what it was made with is JSON inside of a text."""
    A1111.members(
        body,
        {"prompt": text, "steps": integer, "width": integer, "height": integer, "seed": integer, "cfg_scale?": number},
    )
    octets = bytes(digest(index, body) % 256 for index in range(12))
    image = base64.b64encode(b"\x89PNG" + octets).decode()
    return {"images": [image], "parameters": body, "info": json.dumps({"seed": body["seed"], "prompt": body["prompt"]})}


def speech(body: Document) -> Document:
    """Sound as base64 of 16-bit samples, whose number is the text's."""
    ERROR.members(body, {"text": text, "voice": text, "speed": number})
    samples = vector(2 * len(body["text"].split()), body["text"], body["voice"], body["speed"])
    octets = b"".join(int(each * 32767).to_bytes(2, "little", signed=True) for each in samples)
    return {"success": True, "sample_rate": 22050, "audio": base64.b64encode(octets).decode()}


MEDIA = (
    Format(
        name="whisper",
        path="/asr",
        samples=({"audio": base64.b64encode(b"RIFF\x00\x01\xff\x80").decode(), "language": "en", "temperature": 0.0},),
        answer=transcription,
        row=lambda draw: base64.b64encode(draw.randbytes(9)).decode(),
        options=lambda draw: [draw.choice(("en", "de")), draw.random()],
        body=lambda rows, options: {"audio": rows[0], "language": options[0], "temperature": options[1]},
        values=("$.text", "$.segments[*].start", "$.segments[*].text"),
        many=False,
        by_hand="""
            inputs: {audio: {datatype: BYTES, shape: []}, language: {datatype: BYTES, shape: []}}
            outputs:
              text: {datatype: BYTES, shape: []}
              start: {datatype: FP64, shape: [-1]}
              segment: {datatype: BYTES, shape: [-1]}
            request: {path: /asr, body: {$parameters: {audio: $audio, language: $language, temperature: 0}}}
            answer: {text: $.text, start: "$.segments[*].start", segment: "$.segments[*].text"}
            """,
    ),
    Format(
        name="cog",
        path="/predictions",
        health="/health-check",
        samples=({"input": {"text": "a portrait", "scale": 1.5}}, {"input": {"text": "a house", "scale": 2.5}}),
        answer=cog,
        row=lambda draw: [draw.text(), draw.number()],
        body=lambda rows, options: {"input": {"text": rows[0][0], "scale": rows[0][1]}},
        values=("$.output",),
        many=False,
        echoes=True,
        fails=({"input": {"text": "boom", "scale": 1.5}},),
        flag="$.status",
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}, scale: {datatype: FP64, shape: [n]}}
            outputs: {output: {datatype: FP64, shape: [n]}}
            request: {path: /predictions, rows: 1, body: {input: {text: $text, scale: $scale}}}
            answer: {output: $.output}
            success: {$.status: succeeded}
            error: $.error
            """,
    ),
    Format(
        name="replicate",
        path="/v1/predictions",
        samples=({"version": "5c7d5dc6", "input": {"prompt": "Tell me a joke", "top_k": 50}},),
        answer=replicate,
        row=lambda draw: [draw.text(), draw.count()],
        body=lambda rows, options: {"version": "5c7d5dc6", "input": {"prompt": rows[0][0], "top_k": rows[0][1]}},
        values=("$.output[*]",),
        many=False,
        echoes=True,
        by_hand="""
            inputs: {prompt: {datatype: BYTES, shape: []}, top_k: {datatype: INT64, shape: []}}
            outputs: {output: {datatype: BYTES, shape: [-1]}}
            request: {path: /v1/predictions, body: {version: 5c7d5dc6, input: {prompt: $prompt, top_k: $top_k}}}
            answer: {output: $.output}
            success: {$.status: succeeded}
            error: $.error
            """,
    ),
    Format(
        name="gradio",
        path="/api/predict",
        samples=({"data": ["hello", 0.5]},),
        answer=gradio,
        row=lambda draw: [draw.text(), draw.number()],
        body=lambda rows, options: {"data": rows[0]},
        values=("$.data[0].label", "$.data[0].confidences[*].label", "$.data[0].confidences[*].confidence"),
        many=False,
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}, threshold: {datatype: FP64, shape: [n]}}
            outputs:
              label: {datatype: BYTES, shape: [n]}
              labels: {datatype: BYTES, shape: [n, 3]}
              confidence: {datatype: FP64, shape: [n, 3]}
            request: {path: /api/predict, rows: 1, body: {data: [$text, $threshold]}}
            answer:
              label: "$.data[0].label"
              labels: "$.data[0].confidences[*].label"
              confidence: "$.data[0].confidences[*].confidence"
            """,
    ),
    Format(
        name="a1111-txt2img",
        path="/sdapi/v1/txt2img",
        samples=({"prompt": "maltese puppy", "steps": 5, "width": 64, "height": 64, "seed": 1},),
        answer=a1111,
        row=a_text,
        options=lambda draw: [draw.count(), 8 * draw.count(), 8 * draw.count(), draw.integer()],
        body=lambda rows, options: {
            "prompt": rows[0],
            **dict(zip(("steps", "width", "height", "seed"), options, strict=True)),
        },
        values=("$.images[*]", "$.info"),
        many=False,
        echoes=True,
        adapter=Adapter(
            source="""
import base64, json
import numpy as np

def request(call):
    given = {name: call.inputs[name].item() for name in ("steps", "width", "height", "seed")}
    return "/sdapi/v1/txt2img", {"prompt": call.inputs["prompt"].item().decode(), **given}

def answer(call, status, body):
    (image,) = body["images"]
    seed = json.loads(body["info"])["seed"]
    return {"image": np.frombuffer(base64.b64decode(image), np.uint8), "seed": np.array(seed, np.int64)}
""",
            models="""
inputs:
  prompt: {datatype: BYTES, shape: []}
  steps: {datatype: INT64, shape: []}
  width: {datatype: INT64, shape: []}
  height: {datatype: INT64, shape: []}
  seed: {datatype: INT64, shape: []}
outputs: {image: {datatype: UINT8, shape: [-1]}, seed: {datatype: INT64, shape: []}}
""",
            inputs=lambda bodies: bodies[0],
            outputs=lambda answers: {
                "image": list(base64.b64decode(answers[0]["images"][0])),
                "seed": json.loads(answers[0]["info"])["seed"],
            },
        ),
    ),
    Format(
        name="text-to-speech",
        path="/tts",
        samples=({"text": "Hello there", "voice": "anna", "speed": 1.0},),
        answer=speech,
        row=a_text,
        options=lambda draw: [draw.choice(("anna", "bernd")), draw.random()],
        body=lambda rows, options: {"text": rows[0], "voice": options[0], "speed": options[1]},
        values=("$.audio", "$.sample_rate"),
        many=False,
        by_hand="""
            inputs:
              text: {datatype: BYTES, shape: []}
              voice: {datatype: BYTES, shape: []}
              speed: {datatype: FP64, shape: []}
            outputs:
              audio: {datatype: INT16, shape: [-1], encoding: base64}
              sample_rate: {datatype: INT64, shape: []}
            request: {path: /tts, body: {text: $text, voice: $voice, speed: $speed}}
            answer: {audio: $.audio, sample_rate: $.sample_rate}
            success: {$.success: true}
            """,
    ),
)
