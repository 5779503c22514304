"""Servers that rank texts for a query, and servers that compare texts. Most sort their answers."""

from collections.abc import Callable
from typing import Any

from tests.formats.stand_in import (
    ERROR,
    Document,
    Format,
    anything,
    boolean,
    digest,
    integer,
    list_of,
    number,
    share,
    text,
)
from tests.formats.vectors import COHERE, DETAIL_TEXT, TEI, a_text

Ranked = list[tuple[int, float]]


def ranked(query: Document, documents: list[Any], top: int | None = None) -> Ranked:
    """Indexes and scores, the best first."""
    scores = [(index, share(query, each)) for index, each in enumerate(documents)]
    return sorted(scores, key=lambda each: -each[1])[:top]


def cohere(body: Document) -> Document:
    COHERE.members(body, {"model": text, "query": text, "documents": list_of(text), "top_n?": integer})
    found = ranked(body["query"], body["documents"], body.get("top_n"))
    return {
        "results": [{"index": index, "relevance_score": score} for index, score in found],
        "id": f"{digest(body):x}",
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }


def jina(body: Document) -> Document:
    DETAIL_TEXT.members(
        body,
        {"model": text, "query": text, "documents": list_of(text), "top_n?": integer, "return_documents?": boolean},
    )
    results = []
    for index, score in ranked(body["query"], body["documents"], body.get("top_n")):
        shown = {"document": {"text": body["documents"][index]}} if body.get("return_documents", True) else {}
        results.append({"index": index, **shown, "relevance_score": score})
    return {"model": body["model"], "object": "list", "usage": {"total_tokens": 815}, "results": results}


def voyage(body: Document) -> Document:
    DETAIL_TEXT.members(body, {"query": text, "documents": list_of(text), "model": text, "top_k?": integer})
    found = ranked(body["query"], body["documents"], body.get("top_k"))
    data = [{"relevance_score": score, "index": index} for index, score in found]
    return {"object": "list", "data": data, "model": body["model"], "usage": {"total_tokens": 26}}


def tei(body: Document) -> Document:
    TEI.members(
        body,
        {"query": text, "texts": list_of(text), "raw_scores?": boolean, "return_text?": boolean, "truncate?": boolean},
    )
    scale = 10 if body.get("raw_scores") else 1
    return [{"index": index, "score": scale * score} for index, score in ranked(body["query"], body["texts"])]


def nim(body: Document) -> Document:
    DETAIL_TEXT.members(body, {"model": text, "query": anything, "passages": list_of(anything), "truncate?": text})
    query = DETAIL_TEXT.members(body["query"], {"text": text}, "query")["text"]
    passages = [each["text"] for each in DETAIL_TEXT.rows(body["passages"], {"text": text}, "passages")]
    rankings = [{"index": index, "logit": 20 * score - 10} for index, score in ranked(query, passages)]
    return {"rankings": rankings, "usage": {"prompt_tokens": 44, "total_tokens": 44}}


def mixedbread(body: Document) -> Document:
    DETAIL_TEXT.members(
        body, {"model": text, "query": text, "input": list_of(text), "top_k?": integer, "return_input?": boolean}
    )
    data = [
        {
            "index": index,
            "score": score,
            "object": "rank_result",
            **({"input": body["input"][index]} if body.get("return_input") else {}),
        }
        for index, score in ranked(body["query"], body["input"], body.get("top_k"))
    ]
    usage = {"prompt_tokens": 62, "total_tokens": 62, "completion_tokens": 0}
    head = {"usage": usage, "model": body["model"], "data": data, "object": "list"}
    return {**head, "top_k": body.get("top_k", len(data)), "return_input": body.get("return_input", False)}


def similarity(body: Document) -> Document:
    """Sentence similarity of Hugging Face and of text-embeddings-inference."""
    TEI.members(body, {"inputs": anything, "parameters?": anything})
    TEI.members(body["inputs"], {"source_sentence": text, "sentences": list_of(text)}, "inputs")
    return [share(body["inputs"]["source_sentence"], each) for each in body["inputs"]["sentences"]]


def vespa(body: Document) -> Document:
    """A query with a vector: the hits are sorted and named by what was stored, not by rows of the request."""
    ERROR.members(body, {"yql": text, "input.query(q)": list_of(number, 3), "hits": integer, "ranking": text})
    stored = ["doc one", "doc two", "doc three", "doc four"]
    found = ranked([body["yql"], body["input.query(q)"], body["ranking"]], stored, body["hits"])
    children = [
        {"id": f"id:ns:doc::{index}", "relevance": score, "source": "text", "fields": {"title": stored[index]}}
        for index, score in found
    ]
    coverage = {"coverage": 100, "documents": 4, "full": True, "nodes": 1, "results": 1, "resultsFull": 1}
    root = {"id": "toplevel", "relevance": 1.0, "fields": {"totalCount": 4}, "coverage": coverage, "children": children}
    return {"root": root}


def scored(body: Document) -> Document:
    """vLLM's `/v1/score`: one text against several, in their order."""
    ERROR.members(body, {"model": text, "text_1": text, "text_2": list_of(text)})
    data = [
        {"index": index, "object": "score", "score": share(body["text_1"], each)}
        for index, each in enumerate(body["text_2"])
    ]
    return {
        "id": f"score-{digest(body):x}",
        "object": "list",
        "created": 1745512000,
        "model": body["model"],
        "data": data,
        "usage": {},
    }


def query_with(name: str, **members: Document) -> Callable[[list[Any], Any], Any]:
    """A body with a query and the texts in one member, beside others that never change."""
    return lambda rows, options: {**members, "query": options, name: rows}


QUERY = "What is the capital of the United States?"
PLACES = [
    "Carson City is the capital city of Nevada.",
    "Capitalization in grammar.",
    "Washington, D.C. is the capital.",
]

RANKERS = (
    Format(
        name="cohere-rerank",
        path="/v2/rerank",
        samples=(
            {"model": "rerank-v3.5", "query": QUERY, "documents": PLACES},
            {"model": "rerank-v3.5", "query": "Which one?", "documents": PLACES[::-1]},
        ),
        answer=cohere,
        row=a_text,
        options=a_text,
        body=query_with("documents", model="rerank-v3.5"),
        values=("$.results[*].index", "$.results[*].relevance_score"),
        sorts="$.results[*].index",
        by_hand="""
            inputs: {query: {datatype: BYTES, shape: []}, document: {datatype: BYTES, shape: [n]}}
            outputs: {score: {datatype: FP64, shape: [n]}}
            request: {path: /v2/rerank, body: {model: rerank-v3.5, query: $query, documents: $document}}
            answer: {score: "$.results[*].relevance_score"}
            order: "$.results[*].index"
            """,
    ),
    Format(
        name="jina-rerank",
        path="/v1/rerank",
        samples=(
            {"model": "jina-reranker-v2", "query": QUERY, "documents": PLACES, "top_n": 3, "return_documents": False},
        ),
        answer=jina,
        row=a_text,
        options=a_text,
        body=lambda rows, options: {
            "model": "jina-reranker-v2",
            "query": options,
            "documents": rows,
            "top_n": 3,
            "return_documents": False,
        },
        values=("$.results[*].index", "$.results[*].relevance_score"),
        sorts="$.results[*].index",
        by_hand="""
            inputs: {query: {datatype: BYTES, shape: []}, document: {datatype: BYTES, shape: [n]}}
            outputs: {index: {datatype: INT64, shape: [-1]}, score: {datatype: FP64, shape: [-1]}}
            request:
              path: /v1/rerank
              body: {model: jina-reranker-v2, query: $query, documents: $document, top_n: 3, return_documents: false}
            answer: {index: "$.results[*].index", score: "$.results[*].relevance_score"}
            """,
    ),
    Format(
        name="jina-rerank-documents",
        path="/v1/rerank",
        samples=({"model": "jina-reranker-v2", "query": QUERY, "documents": PLACES},),
        answer=jina,
        row=a_text,
        options=a_text,
        body=query_with("documents", model="jina-reranker-v2"),
        values=("$.results[*].index", "$.results[*].relevance_score"),
        sorts="$.results[*].index",
        echoes=True,
        by_hand="""
            inputs: {query: {datatype: BYTES, shape: []}, document: {datatype: BYTES, shape: [n]}}
            outputs: {score: {datatype: FP64, shape: [n]}, text: {datatype: BYTES, shape: [n]}}
            request: {path: /v1/rerank, body: {model: jina-reranker-v2, query: $query, documents: $document}}
            answer: {score: "$.results[*].relevance_score", text: "$.results[*].document.text"}
            order: "$.results[*].index"
            """,
    ),
    Format(
        name="voyage-rerank",
        path="/v1/rerank",
        samples=({"query": QUERY, "documents": PLACES, "model": "rerank-2.5"},),
        answer=voyage,
        row=a_text,
        options=a_text,
        body=query_with("documents", model="rerank-2.5"),
        values=("$.data[*].index", "$.data[*].relevance_score"),
        sorts="$.data[*].index",
        by_hand="""
            inputs: {query: {datatype: BYTES, shape: []}, document: {datatype: BYTES, shape: [n]}}
            outputs: {score: {datatype: FP64, shape: [n]}}
            request: {path: /v1/rerank, body: {query: $query, documents: $document, model: rerank-2.5}}
            answer: {score: "$.data[*].relevance_score"}
            order: "$.data[*].index"
            """,
    ),
    Format(
        name="tei-rerank",
        path="/rerank",
        health="/health",
        samples=(
            {"query": "hello", "texts": ["help", "yellow", "abc"]},
            {"query": "good bye", "texts": ["bye", "good", "abc"]},
        ),
        answer=tei,
        row=a_text,
        options=a_text,
        body=query_with("texts"),
        values=("$[*].index", "$[*].score"),
        sorts="$[*].index",
        by_hand="""
            inputs: {query: {datatype: BYTES, shape: []}, text: {datatype: BYTES, shape: [n]}}
            outputs: {score: {datatype: FP64, shape: [n]}}
            request: {path: /rerank, body: {query: $query, texts: $text}}
            answer: {score: "$[*].score"}
            order: "$[*].index"
            """,
    ),
    Format(
        name="nim-rerank",
        path="/v1/ranking",
        health="/v1/health/ready",
        samples=(
            {
                "model": "nvidia/nv-rerankqa-mistral-4b-v3",
                "query": {"text": "which way did the traveler go?"},
                "passages": [{"text": "two roads diverged in a yellow wood"}, {"text": "then took the other"}],
                "truncate": "END",
            },
        ),
        answer=nim,
        row=a_text,
        options=a_text,
        body=lambda rows, options: {
            "model": "nvidia/nv-rerankqa-mistral-4b-v3",
            "query": {"text": options},
            "passages": [{"text": each} for each in rows],
            "truncate": "END",
        },
        values=("$.rankings[*].index", "$.rankings[*].logit"),
        sorts="$.rankings[*].index",
        by_hand="""
            inputs: {query: {datatype: BYTES, shape: []}, passage: {datatype: BYTES, shape: [n]}}
            outputs: {logit: {datatype: FP64, shape: [n]}}
            request:
              path: /v1/ranking
              body:
                model: nvidia/nv-rerankqa-mistral-4b-v3
                query: {text: $query}
                passages: {$each: {text: $passage}}
                truncate: END
            answer: {logit: "$.rankings[*].logit"}
            order: "$.rankings[*].index"
            """,
    ),
    Format(
        name="mixedbread-rerank",
        path="/v1/reranking",
        samples=(
            {"model": "mxbai-rerank-large-v2", "query": QUERY, "input": PLACES, "top_k": 2, "return_input": False},
        ),
        answer=mixedbread,
        row=a_text,
        options=lambda draw: [draw.text(), draw.randrange(1, 3)],
        body=lambda rows, options: {
            "model": "mxbai-rerank-large-v2",
            "query": options[0],
            "input": rows,
            "top_k": options[1],
            "return_input": False,
        },
        values=("$.data[*].index", "$.data[*].score"),
        sorts="$.data[*].index",
        by_hand="""
            inputs:
              query: {datatype: BYTES, shape: []}
              text: {datatype: BYTES, shape: [n]}
              k: {datatype: INT64, shape: []}
            outputs: {index: {datatype: INT64, shape: [-1]}, score: {datatype: FP64, shape: [-1]}}
            request:
              path: /v1/reranking
              body: {model: mxbai-rerank-large-v2, query: $query, input: $text, top_k: $k, return_input: false}
            answer: {index: "$.data[*].index", score: "$.data[*].score"}
            """,
    ),
    Format(
        name="sentence-similarity",
        path="/similarity",
        health="/health",
        samples=({"inputs": {"source_sentence": "What is Deep Learning?", "sentences": ["What is ML?", "It rains."]}},),
        answer=similarity,
        row=a_text,
        options=a_text,
        body=lambda rows, options: {"inputs": {"source_sentence": options, "sentences": rows}},
        values=("$[*]",),
        by_hand="""
            inputs: {source: {datatype: BYTES, shape: []}, sentence: {datatype: BYTES, shape: [n]}}
            outputs: {score: {datatype: FP64, shape: [n]}}
            request: {path: /similarity, body: {inputs: {source_sentence: $source, sentences: $sentence}}}
            answer: {score: $}
            """,
    ),
    Format(
        name="vllm-score",
        path="/v1/score",
        health="/health",
        samples=({"model": "BAAI/bge-reranker-v2-m3", "text_1": "What is the capital of France?", "text_2": PLACES},),
        answer=scored,
        row=a_text,
        options=a_text,
        body=lambda rows, options: {"model": "BAAI/bge-reranker-v2-m3", "text_1": options, "text_2": rows},
        values=("$.data[*].score",),
        by_hand="""
            inputs: {text_1: {datatype: BYTES, shape: []}, text_2: {datatype: BYTES, shape: [n]}}
            outputs: {score: {datatype: FP64, shape: [n]}}
            request: {path: /v1/score, body: {model: BAAI/bge-reranker-v2-m3, text_1: $text_1, text_2: $text_2}}
            answer: {score: "$.data[*].score"}
            """,
    ),
    Format(
        name="vespa-query",
        path="/search/",
        health="/state/v1/health",
        samples=(
            {"yql": "select * from doc where true", "input.query(q)": [0.5, 0.25, 1.0], "hits": 2, "ranking": "near"},
        ),
        answer=vespa,
        row=lambda draw: draw.of("number", 3),
        options=lambda draw: draw.randrange(1, 5),
        body=lambda rows, options: {
            "yql": "select * from doc where true",
            "input.query(q)": rows[0],
            "hits": options,
            "ranking": "near",
        },
        values=("$.root.children[*].relevance", "$.root.children[*].fields.title"),
        many=False,
        by_hand="""
            inputs: {q: {datatype: FP64, shape: [3]}, hits: {datatype: INT64, shape: []}}
            outputs: {relevance: {datatype: FP64, shape: [-1]}, title: {datatype: BYTES, shape: [-1]}}
            request:
              path: /search/
              body: {yql: select * from doc where true, "input.query(q)": $q, hits: $hits, ranking: near}
            answer: {relevance: "$.root.children[*].relevance", title: "$.root.children[*].fields.title"}
            """,
    ),
)
