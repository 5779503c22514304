"""Servers that write texts: completions, translations, answers to questions."""

from tests.formats.stand_in import (
    ERROR,
    MESSAGE,
    OPENAI,
    Document,
    Draw,
    Format,
    anything,
    digest,
    either,
    integer,
    list_of,
    number,
    one_of,
    pick,
    share,
    text,
)
from tests.formats.vectors import DETAIL_TEXT, LLAMA, a_text


def written(*parts: Document) -> str:
    """A text that depends on every value in *parts*."""
    return f"{pick(['Ja', 'Nein', 'Vielleicht ü'], *parts)} {digest(*parts):x}"


def completions(body: Document) -> Document:
    OPENAI.members(
        body, {"model": text, "prompt": either(text, list_of(text)), "max_tokens?": integer, "temperature?": number}
    )
    prompts = [body["prompt"]] if isinstance(body["prompt"], str) else body["prompt"]
    settings = [body["model"], body.get("max_tokens"), body.get("temperature")]
    choices = [
        {"text": written(each, settings), "index": index, "logprobs": None, "finish_reason": "length"}
        for index, each in enumerate(prompts)
    ]
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    head = {"id": f"cmpl-{digest(body):x}", "object": "text_completion", "created": 1589478378, "model": body["model"]}
    return {**head, "choices": choices, "usage": usage}


def chat(body: Document) -> Document:
    """All messages are one conversation: put together, those of two clients are another one."""
    OPENAI.members(body, {"model": text, "messages": list_of(anything), "temperature?": number, "max_tokens?": integer})
    kinds = {"role": one_of("system", "user", "assistant"), "content": text}
    messages = OPENAI.rows(body["messages"], kinds, "messages")
    said = written([[each["role"], each["content"]] for each in messages], body.get("temperature"))
    choice = {"index": 0, "message": {"role": "assistant", "content": said}, "logprobs": None, "finish_reason": "stop"}
    head = {"id": f"chatcmpl-{digest(body):x}", "object": "chat.completion", "created": 1741569952}
    return {**head, "model": body["model"], "choices": [choice], "usage": {"total_tokens": 29}}


def moderation(body: Document) -> Document:
    OPENAI.members(body, {"input": either(text, list_of(text)), "model?": text})
    rows = [body["input"]] if isinstance(body["input"], str) else body["input"]
    names = ("hate", "hate/threatening", "self-harm", "violence")
    results = []
    for each in rows:
        scores = {name: share(name, each) for name in names}
        categories = {name: score > 0.5 for name, score in scores.items()}
        results.append({"flagged": any(categories.values()), "categories": categories, "category_scores": scores})
    return {"id": f"modr-{digest(body):x}", "model": "omni-moderation-latest", "results": results}


def llama_completion(body: Document) -> Document:
    LLAMA.members(body, {"prompt": text, "n_predict?": integer, "temperature?": number})
    return {
        "index": 0,
        "content": written(body["prompt"], body.get("n_predict"), body.get("temperature")),
        "tokens": [],
        "stop": True,
        "model": "gpt-3.5-turbo",
        "tokens_predicted": 12,
        "generation_settings": {"n_predict": body.get("n_predict", -1), "samplers": ["top_k", "temperature"]},
        "prompt": body["prompt"],
        "stop_type": "limit",
        "timings": {"prompt_n": 8, "prompt_ms": 12.5},
    }


def ollama_generate(body: Document) -> Document:
    ERROR.members(body, {"model": text, "prompt": text, "stream": one_of(False), "options?": anything})
    ERROR.members(body.get("options", {}), {"temperature?": number, "seed?": integer})
    return {
        "model": body["model"],
        "created_at": "2026-08-04T19:22:45.499127Z",
        "response": written(body["prompt"], body.get("options")),
        "done": True,
        "done_reason": "stop",
        "context": [digest(index, body) % 1000 for index in range(1 + len(body["prompt"].split()))],
        "total_duration": 5043500667,
    }


def libretranslate(body: Document) -> Document:
    ERROR.members(
        body, {"q": either(text, list_of(text)), "source": text, "target": text, "format?": text, "api_key?": text}
    )
    pair = [body["source"], body["target"]]
    if isinstance(body["q"], str):
        return {"translatedText": written(pair, body["q"])}
    return {"translatedText": [written(pair, each) for each in body["q"]]}


def deepl(body: Document) -> Document:
    MESSAGE.members(body, {"text": list_of(text), "target_lang": text, "source_lang?": text})
    found = [
        {"detected_source_language": pick(["EN", "FR"], each), "text": written(body["target_lang"], each)}
        for each in body["text"]
    ]
    return {"translations": found}


def question_answering(body: Document) -> Document:
    ERROR.members(body, {"inputs": anything})
    inputs = ERROR.members(body["inputs"], {"question": text, "context": text}, "inputs")
    pair = [inputs["question"], inputs["context"]]
    start = digest(pair) % 10
    return {"score": share(pair), "start": start, "end": start + 5, "answer": written(pair)}


def haystack(body: Document) -> Document:
    """The pipeline for questions of Haystack 1: its answers are sorted, and as many as it finds."""
    DETAIL_TEXT.members(body, {"query": text, "params?": anything})
    params = DETAIL_TEXT.members(body.get("params", {}), {"Reader?": anything}, "params")
    reader = DETAIL_TEXT.members(params.get("Reader", {}), {"top_k?": integer}, "Reader")
    found = sorted((share(index, body["query"]) for index in range(reader.get("top_k", 3))), reverse=True)
    answers = [
        {"answer": written(index, body["query"]), "type": "extractive", "score": score, "context": f"Kontext {index}",
         "offsets_in_document": [{"start": index, "end": index + 4}], "meta": {}}
        for index, score in enumerate(found)
    ]  # fmt: skip
    return {"query": body["query"], "answers": answers, "documents": []}


def a_conversation(draw: Draw) -> list[str]:
    return [draw.choice(("user", "assistant", "system")), draw.text()]


LANGUAGE = (
    Format(
        name="openai-completions",
        path="/v1/completions",
        health="/health",
        samples=(
            {"model": "m", "prompt": "Say this is a test", "max_tokens": 7, "temperature": 0},
            {"model": "m", "prompt": "And this is none", "max_tokens": 9, "temperature": 0.5},
        ),
        answer=completions,
        row=a_text,
        options=lambda draw: [draw.count(), draw.random()],
        body=lambda rows, options: {
            "model": "m",
            "prompt": rows[0],
            "max_tokens": options[0],
            "temperature": options[1],
        },
        values=("$.choices[*].text",),
        many=False,
        by_hand="""
            inputs: {prompt: {datatype: BYTES, shape: [n]}}
            outputs: {text: {datatype: BYTES, shape: [n]}}
            request:
              path: /v1/completions
              rows: 1
              body: {$parameters: {model: m, prompt: $prompt, max_tokens: 16, temperature: 1}}
            answer: {text: "$.choices[*].text"}
            """,
    ),
    Format(
        name="openai-completions-list",
        path="/v1/completions",
        health="/health",
        samples=({"model": "m", "prompt": ["Say this is a test", "and this"], "max_tokens": 7},),
        answer=completions,
        row=a_text,
        options=lambda draw: draw.count(),
        body=lambda rows, options: {"model": "m", "prompt": rows, "max_tokens": options},
        values=("$.choices[*].text",),
        by_hand="""
            inputs: {prompt: {datatype: BYTES, shape: [n]}, max_tokens: {datatype: INT64, shape: []}}
            outputs: {text: {datatype: BYTES, shape: [n]}}
            request: {path: /v1/completions, body: {model: m, prompt: $prompt, max_tokens: $max_tokens}}
            answer: {text: "$.choices[*].text"}
            order: "$.choices[*].index"
            """,
    ),
    Format(
        name="openai-chat",
        path="/v1/chat/completions",
        health="/health",
        samples=(
            {
                "model": "m",
                "messages": [
                    {"role": "system", "content": "You are a helpful assistant."},
                    {"role": "user", "content": "Hello!"},
                ],
                "temperature": 0.5,
            },
        ),
        answer=chat,
        row=a_conversation,
        options=lambda draw: draw.random(),
        body=lambda rows, options: {
            "model": "m",
            "messages": [{"role": role, "content": content} for role, content in rows],
            "temperature": options,
        },
        values=("$.choices[*].message.content",),
        rows_depend=True,
        by_hand="""
            inputs: {role: {datatype: BYTES, shape: [n]}, content: {datatype: BYTES, shape: [n]}}
            outputs: {reply: {datatype: BYTES, shape: []}}
            request:
              path: /v1/chat/completions
              body:
                $parameters:
                  model: m
                  messages: {$each: {role: $role, content: $content}}
                  temperature: 1
            answer: {reply: "$.choices[0].message.content"}
            """,
    ),
    Format(
        name="openai-moderation",
        path="/v1/moderations",
        samples=({"input": ["I want to kill them.", "I like them"], "model": "omni-moderation-latest"},),
        answer=moderation,
        row=a_text,
        body=lambda rows, options: {"input": rows, "model": "omni-moderation-latest"},
        values=("$.results[*].flagged", "$.results[*].categories", "$.results[*].category_scores"),
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}}
            outputs:
              flagged: {datatype: BOOL, shape: [n]}
              is_hate: {datatype: BOOL, shape: [n]}
              is_threat: {datatype: BOOL, shape: [n]}
              is_self_harm: {datatype: BOOL, shape: [n]}
              is_violence: {datatype: BOOL, shape: [n]}
              hate: {datatype: FP64, shape: [n]}
              threat: {datatype: FP64, shape: [n]}
              self_harm: {datatype: FP64, shape: [n]}
              violence: {datatype: FP64, shape: [n]}
            request: {path: /v1/moderations, body: {input: $text, model: omni-moderation-latest}}
            answer:
              flagged: "$.results[*].flagged"
              is_hate: "$.results[*].categories.hate"
              is_threat: "$.results[*].categories['hate/threatening']"
              is_self_harm: "$.results[*].categories['self-harm']"
              is_violence: "$.results[*].categories.violence"
              hate: "$.results[*].category_scores.hate"
              threat: "$.results[*].category_scores['hate/threatening']"
              self_harm: "$.results[*].category_scores['self-harm']"
              violence: "$.results[*].category_scores.violence"
            """,
    ),
    Format(
        name="llamacpp-completion",
        path="/completion",
        health="/health",
        samples=({"prompt": "Building a website can be done in 10 steps:", "n_predict": 128},),
        answer=llama_completion,
        row=a_text,
        options=lambda draw: draw.count(),
        body=lambda rows, options: {"prompt": rows[0], "n_predict": options},
        values=("$.content",),
        many=False,
        echoes=True,
        by_hand="""
            inputs: {prompt: {datatype: BYTES, shape: [n]}, n_predict: {datatype: INT64, shape: []}}
            outputs: {content: {datatype: BYTES, shape: [n]}}
            request: {path: /completion, rows: 1, body: {prompt: $prompt, n_predict: $n_predict}}
            answer: {content: $.content}
            """,
    ),
    Format(
        name="ollama-generate",
        path="/api/generate",
        samples=(
            {
                "model": "llama3.2",
                "prompt": "Why is the sky blue?",
                "stream": False,
                "options": {"temperature": 0.5, "seed": 7},
            },
        ),
        answer=ollama_generate,
        row=a_text,
        options=lambda draw: [draw.random(), draw.count()],
        body=lambda rows, options: {
            "model": "llama3.2",
            "prompt": rows[0],
            "stream": False,
            "options": {"temperature": options[0], "seed": options[1]},
        },
        values=("$.response",),
        many=False,
        by_hand="""
            inputs: {prompt: {datatype: BYTES, shape: [n]}}
            outputs: {response: {datatype: BYTES, shape: [n]}}
            request:
              path: /api/generate
              rows: 1
              body:
                model: llama3.2
                prompt: $prompt
                stream: false
                options: {$parameters: {temperature: 0.8, seed: 0}}
            answer: {response: $.response}
            """,
    ),
    Format(
        name="libretranslate",
        path="/translate",
        health="/health",
        samples=(
            {"q": "Hello!", "source": "en", "target": "es", "format": "text"},
            {"q": "Guten Tag", "source": "de", "target": "fr", "format": "text"},
        ),
        answer=libretranslate,
        row=a_text,
        options=lambda draw: [draw.choice(("en", "de", "auto")), draw.choice(("es", "fr"))],
        body=lambda rows, options: {"q": rows[0], "source": options[0], "target": options[1], "format": "text"},
        values=("$.translatedText",),
        many=False,
        by_hand="""
            inputs:
              q: {datatype: BYTES, shape: [n]}
              source: {datatype: BYTES, shape: []}
              target: {datatype: BYTES, shape: []}
            outputs: {text: {datatype: BYTES, shape: [n]}}
            request: {path: /translate, body: {q: $q, source: $source, target: $target, format: text}, rows: 1}
            answer: {text: $.translatedText}
            """,
    ),
    Format(
        name="deepl",
        path="/v2/translate",
        samples=({"text": ["Hello, world!", "Good bye"], "target_lang": "DE"},),
        answer=deepl,
        row=a_text,
        options=lambda draw: draw.choice(("DE", "FR", "JA")),
        body=lambda rows, options: {"text": rows, "target_lang": options},
        values=("$.translations[*].text", "$.translations[*].detected_source_language"),
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}}
            outputs: {translation: {datatype: BYTES, shape: [n]}, language: {datatype: BYTES, shape: [n]}}
            request: {path: /v2/translate, body: {$parameters: {text: $text, target_lang: EN}}}
            answer: {translation: "$.translations[*].text", language: "$.translations[*].detected_source_language"}
            """,
    ),
    Format(
        name="hf-question-answering",
        path="/",
        samples=({"inputs": {"question": "What is my name?", "context": "My name is Clara and I live in Berkeley."}},),
        answer=question_answering,
        row=lambda draw: draw.of("text", 2),
        body=lambda rows, options: {"inputs": {"question": rows[0][0], "context": rows[0][1]}},
        values=("$.score", "$.start", "$.end", "$.answer"),
        many=False,
        by_hand="""
            inputs: {question: {datatype: BYTES, shape: [n]}, context: {datatype: BYTES, shape: [n]}}
            outputs:
              score: {datatype: FP64, shape: [n]}
              start: {datatype: INT64, shape: [n]}
              end: {datatype: INT64, shape: [n]}
              answer: {datatype: BYTES, shape: [n]}
            request: {path: /, rows: 1, body: {inputs: {question: $question, context: $context}}}
            answer: {score: $.score, start: $.start, end: $.end, answer: $.answer}
            """,
    ),
    Format(
        name="haystack",
        path="/query",
        health="/initialized",
        samples=({"query": "Who is the father of Arya Stark?", "params": {"Reader": {"top_k": 3}}},),
        answer=haystack,
        row=a_text,
        options=lambda draw: draw.randrange(1, 6),
        body=lambda rows, options: {"query": rows[0], "params": {"Reader": {"top_k": options}}},
        values=("$.answers[*].answer", "$.answers[*].score", "$.answers[*].context"),
        many=False,
        by_hand="""
            inputs: {query: {datatype: BYTES, shape: []}, top_k: {datatype: INT64, shape: []}}
            outputs:
              answer: {datatype: BYTES, shape: [-1]}
              score: {datatype: FP64, shape: [-1]}
              context: {datatype: BYTES, shape: [-1]}
            request: {path: /query, body: {query: $query, params: {Reader: {top_k: $top_k}}}}
            answer: {answer: "$.answers[*].answer", score: "$.answers[*].score", context: "$.answers[*].context"}
            """,
    ),
)
