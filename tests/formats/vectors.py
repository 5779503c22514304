"""Servers that make vectors of texts."""

import base64
import struct
from typing import Any

from tests.formats.stand_in import (
    ERROR,
    OPENAI,
    Document,
    Draw,
    Format,
    Strict,
    anything,
    boolean,
    digest,
    either,
    integer,
    list_of,
    one_of,
    text,
    vector,
)

DETAIL_TEXT = Strict(422, lambda words: {"detail": words})
COHERE = Strict(400, lambda words: {"message": words})
TEI = Strict(422, lambda words: {"error": words, "error_type": "Validation"})
LLAMA = Strict(400, lambda words: {"error": {"code": 400, "message": words, "type": "invalid_request_error"}})


def a_text(draw: Draw) -> str:
    return draw.text()


def texts_at(name: str, **members: Document) -> Any:
    """A body with the texts in one member, beside others that never change."""
    return lambda rows, options: {name: rows, **members}


def openai(body: Document) -> Document:
    OPENAI.members(
        body,
        {
            "input": either(text, list_of(text)),
            "model": text,
            "encoding_format?": one_of("float", "base64"),
            "dimensions?": integer,
            "user?": text,
        },
    )
    rows = [body["input"]] if isinstance(body["input"], str) else body["input"]
    found = [vector(body.get("dimensions", 4), body["model"], each) for each in rows]
    if body.get("encoding_format") == "base64":
        return openai_list(body, [base64.b64encode(struct.pack(f"<{len(each)}f", *each)).decode() for each in found])
    return openai_list(body, found)


def openai_list(body: Document, found: list[Any]) -> Document:
    rows = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(found)]
    n_tokens = sum(len(each.split()) for each in body["input"]) if isinstance(body["input"], list) else 1
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "data": rows, "model": body["model"], "usage": usage}


def voyage(body: Document) -> Document:
    DETAIL_TEXT.members(
        body,
        {
            "input": list_of(text),
            "model": text,
            "input_type?": one_of(None, "query", "document"),
            "truncation?": boolean,
        },
    )
    found = [vector(4, body["model"], body.get("input_type"), each) for each in body["input"]]
    data = [{"object": "embedding", "embedding": each, "index": index} for index, each in enumerate(found)]
    return {"object": "list", "data": data, "model": body["model"], "usage": {"total_tokens": 7 * len(data)}}


def cohere(body: Document) -> Document:
    COHERE.members(
        body,
        {
            "model": text,
            "texts": list_of(text),
            "input_type": one_of("search_document", "search_query", "classification"),
            "embedding_types": list_of(one_of("float"), 1),
            "truncate?": text,
        },
    )
    found = [vector(4, body["model"], body["input_type"], each) for each in body["texts"]]
    return {
        "id": f"{digest(body):x}",
        "embeddings": {"float": found},
        "texts": body["texts"],
        "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": len(found)}},
        "response_type": "embeddings_by_type",
    }


def tei(body: Document) -> Document:
    TEI.members(body, {"inputs": either(text, list_of(text)), "normalize?": boolean, "truncate?": boolean})
    rows = [body["inputs"]] if isinstance(body["inputs"], str) else body["inputs"]
    return [vector(4, body.get("normalize", True), each) for each in rows]


def feature_extraction(body: Document) -> Document:
    """A vector for each word: the length of the answer is the text's."""
    ERROR.members(body, {"inputs": text})
    return [[vector(3, body["inputs"], word, index) for index, word in enumerate(body["inputs"].split())]]


def weaviate(body: Document) -> Document:
    """The inference container of Weaviate's module for transformers."""
    ERROR.members(body, {"text": text, "config?": anything})
    return {"text": body["text"], "vector": vector(4, body["text"]), "dim": 4}


def llama(body: Document) -> Document:
    LLAMA.members(body, {"content": either(text, list_of(text))})
    rows = [body["content"]] if isinstance(body["content"], str) else body["content"]
    return [{"index": index, "embedding": [vector(4, each)]} for index, each in enumerate(rows)]


def ollama_embed(body: Document) -> Document:
    ERROR.members(
        body,
        {"model": text, "input": either(text, list_of(text)), "truncate?": boolean, "keep_alive?": text},
    )
    rows = [body["input"]] if isinstance(body["input"], str) else body["input"]
    return {
        "model": body["model"],
        "embeddings": [vector(4, body["model"], each) for each in rows],
        "total_duration": 14143917,
        "load_duration": 1019500,
        "prompt_eval_count": len(rows),
    }


def ollama_embeddings(body: Document) -> Document:
    ERROR.members(body, {"model": text, "prompt": text, "keep_alive?": text})
    return {"embedding": vector(4, body["model"], body["prompt"])}


def gemini(body: Document) -> Document:
    """`batchEmbedContents` of Google's Gemini API."""
    ERROR.members(body, {"requests": list_of(anything)})
    found = []
    for each in ERROR.rows(body["requests"], {"model": text, "content": anything, "taskType?": text}, "requests"):
        (part,) = ERROR.members(each["content"], {"parts": list_of(anything, 1)})["parts"]
        ERROR.members(part, {"text": text})
        found.append({"values": vector(4, each["model"], each.get("taskType"), part["text"])})
    return {"embeddings": found}


VECTORS = (
    Format(
        name="openai-embeddings",
        path="/v1/embeddings",
        health="/health",
        samples=(
            {"input": ["The food was delicious", "and the waiter"], "model": "text-embedding-3-small"},
            {"input": ["Something else", "entirely"], "model": "text-embedding-3-small"},
        ),
        answer=openai,
        row=a_text,
        body=texts_at("input", model="text-embedding-3-small"),
        values=("$.data[*].embedding",),
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}}
            outputs: {embedding: {datatype: FP64, shape: [n, -1]}}
            request: {path: /v1/embeddings, body: {input: $text, model: text-embedding-3-small}}
            answer: {embedding: "$.data[*].embedding"}
            error: $.error.message
            """,
    ),
    Format(
        name="openai-embeddings-base64",
        path="/v1/embeddings",
        samples=({"input": ["one", "two"], "model": "m", "encoding_format": "base64", "dimensions": 3},),
        answer=openai,
        row=a_text,
        options=lambda draw: draw.randrange(2, 9),
        body=lambda rows, options: {
            "input": rows,
            "model": "m",
            "encoding_format": "base64",
            "dimensions": options,
        },
        values=("$.data[*].embedding",),
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}}
            outputs: {embedding: {datatype: FP32, shape: [n, -1], encoding: base64}}
            request:
              path: /v1/embeddings
              body: {$parameters: {dimensions: 256, input: $text, model: m, encoding_format: base64}}
            answer: {embedding: "$.data[*].embedding"}
            """,
    ),
    Format(
        name="voyage-embeddings",
        path="/v1/embeddings",
        samples=({"input": ["Sample text 1", "Sample text 2"], "model": "voyage-3", "input_type": "document"},),
        answer=voyage,
        row=a_text,
        options=lambda draw: draw.choice(("document", "query")),
        body=lambda rows, options: {"input": rows, "model": "voyage-3", "input_type": options},
        values=("$.data[*].embedding",),
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}, input_type: {datatype: BYTES, shape: []}}
            outputs: {embedding: {datatype: FP64, shape: [n, 4]}}
            request: {path: /v1/embeddings, body: {input: $text, model: voyage-3, input_type: $input_type}}
            answer: {embedding: "$.data[*].embedding"}
            """,
    ),
    Format(
        name="cohere-embed",
        path="/v2/embed",
        samples=(
            {
                "model": "embed-v4.0",
                "texts": ["hello", "goodbye"],
                "input_type": "search_document",
                "embedding_types": ["float"],
            },
        ),
        answer=cohere,
        row=a_text,
        options=lambda draw: draw.choice(("search_document", "search_query")),
        body=lambda rows, options: {
            "model": "embed-v4.0",
            "texts": rows,
            "input_type": options,
            "embedding_types": ["float"],
        },
        values=("$.embeddings.float",),
        echoes=True,
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}}
            outputs: {embedding: {datatype: FP64, shape: [n, 4]}}
            request:
              path: /v2/embed
              body:
                $parameters:
                  model: embed-v4.0
                  texts: $text
                  input_type: classification
                  embedding_types: [float]
            answer: {embedding: $.embeddings.float}
            """,
    ),
    Format(
        name="tei-embed",
        path="/embed",
        health="/health",
        samples=({"inputs": ["What is deep learning?", "and what not?"], "normalize": True},),
        answer=tei,
        row=a_text,
        options=lambda draw: draw.random() < 0.5,
        body=lambda rows, options: {"inputs": rows, "normalize": options},
        values=("$[*]",),
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}, normalize: {datatype: BOOL, shape: []}}
            outputs: {embedding: {datatype: FP64, shape: [n, 4]}}
            request: {path: /embed, body: {inputs: $text, normalize: $normalize}}
            answer: {embedding: $}
            """,
    ),
    Format(
        name="tei-embed-one",
        path="/embed",
        health="/health",
        samples=({"inputs": "What is deep learning?"},),
        answer=tei,
        row=a_text,
        body=lambda rows, options: {"inputs": rows[0]},
        values=("$[*]",),
        many=False,
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}}
            outputs: {embedding: {datatype: FP64, shape: [n, 4]}}
            request: {path: /embed, rows: 1, body: {inputs: $text}}
            answer: {embedding: $}
            """,
    ),
    Format(
        name="hf-feature-extraction",
        path="/",
        samples=({"inputs": "three words here"},),
        answer=feature_extraction,
        row=a_text,
        body=lambda rows, options: {"inputs": rows[0]},
        values=("$[0][*]",),
        many=False,
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: []}}
            outputs: {vectors: {datatype: FP64, shape: [-1, 3]}}
            request: {path: /, body: {inputs: $text}}
            answer: {vectors: "$[0]"}
            """,
    ),
    Format(
        name="weaviate-vectors",
        path="/vectors",
        health="/.well-known/ready",
        samples=(
            {"text": "foo bar", "config": {"pooling_strategy": "masked_mean"}},
            {"text": "baz", "config": {"pooling_strategy": "masked_mean"}},
        ),
        answer=weaviate,
        row=a_text,
        body=lambda rows, options: {"text": rows[0], "config": {"pooling_strategy": "masked_mean"}},
        values=("$.vector",),
        many=False,
        echoes=True,
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}}
            outputs: {vector: {datatype: FP64, shape: [n, 4]}}
            request: {path: /vectors, rows: 1, body: {text: $text, config: {pooling_strategy: masked_mean}}}
            answer: {vector: $.vector}
            """,
    ),
    Format(
        name="llamacpp-embedding",
        path="/embedding",
        health="/health",
        samples=({"content": "hello"},),
        answer=llama,
        row=a_text,
        body=lambda rows, options: {"content": rows[0]},
        values=("$[*].embedding",),
        many=False,
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}}
            outputs: {embedding: {datatype: FP64, shape: [n, 4]}}
            request: {path: /embedding, rows: 1, body: {content: $text}}
            answer: {embedding: "$[*].embedding[0]"}
            """,
    ),
    Format(
        name="ollama-embed",
        path="/api/embed",
        samples=({"model": "all-minilm", "input": ["Why is the sky blue?", "Why is the grass green?"]},),
        answer=ollama_embed,
        row=a_text,
        body=texts_at("input", model="all-minilm"),
        values=("$.embeddings",),
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}}
            outputs: {embedding: {datatype: FP64, shape: [n, 4]}}
            request: {path: /api/embed, body: {model: all-minilm, input: $text}}
            answer: {embedding: $.embeddings}
            """,
    ),
    Format(
        name="ollama-embeddings",
        path="/api/embeddings",
        samples=({"model": "all-minilm", "prompt": "Here is an article about llamas..."},),
        answer=ollama_embeddings,
        row=a_text,
        body=lambda rows, options: {"model": "all-minilm", "prompt": rows[0]},
        values=("$.embedding",),
        many=False,
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}}
            outputs: {embedding: {datatype: FP64, shape: [n, 4]}}
            request: {path: /api/embeddings, rows: 1, body: {model: all-minilm, prompt: $text}}
            answer: {embedding: $.embedding}
            """,
    ),
    Format(
        name="gemini-batch-embed",
        path="/v1beta/models/embedding-001:batchEmbedContents",
        samples=(
            {
                "requests": [
                    {"model": "models/embedding-001", "content": {"parts": [{"text": "first"}]}},
                    {"model": "models/embedding-001", "content": {"parts": [{"text": "second"}]}},
                ]
            },
        ),
        answer=gemini,
        row=a_text,
        body=lambda rows, options: {
            "requests": [{"model": "models/embedding-001", "content": {"parts": [{"text": each}]}} for each in rows]
        },
        values=("$.embeddings[*].values",),
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}}
            outputs: {embedding: {datatype: FP64, shape: [n, 4]}}
            request:
              path: /v1beta/models/embedding-001:batchEmbedContents
              body: {requests: {$each: {model: models/embedding-001, content: {parts: [{text: $text}]}}}}
            answer: {embedding: "$.embeddings[*].values"}
            """,
    ),
)
