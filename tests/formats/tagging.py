"""Servers that say what a text or an image is, or what is in it: labels with scores, spans, boxes."""

import base64
import json
from typing import Any

from tests.formats.stand_in import (
    DETAIL,
    ERROR,
    GOOGLE,
    Adapter,
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
    number,
    one_of,
    pick,
    share,
    shares,
    text,
)
from tests.formats.vectors import TEI, a_text

LABELS = ("joy", "anger", "fear")
AWS = Strict(400, lambda words: {"__type": "InvalidRequestException", "message": words})
RASA = Strict(400, lambda words: {"version": "3.6", "status": "failure", "message": words, "code": 400})
ELASTIC = Strict(400, lambda words: {"error": {"type": "parse_exception", "reason": words}, "status": 400})


def ranking(*parts: Document, names: tuple[str, ...] = LABELS) -> list[dict[str, Any]]:
    """Labels and scores, the likeliest first."""
    found = sorted(shares(names, *parts).items(), key=lambda each: -each[1])
    return [{"label": label, "score": score} for label, score in found]


def tei_predict(body: Document) -> Document:
    """A list of two texts is one pair of texts, and a list of lists is a batch."""
    TEI.members(body, {"inputs": anything, "raw_scores?": boolean, "truncate?": boolean})
    inputs = body["inputs"]
    if text(inputs):
        return ranking(inputs)
    if list_of(text)(inputs) and len(inputs) in (1, 2):
        return ranking(inputs if len(inputs) == 2 else inputs[0])
    if list_of(list_of(text))(inputs) and all(len(each) in (1, 2) for each in inputs):
        return [ranking(each if len(each) == 2 else each[0]) for each in inputs]
    return TEI.refuse("`inputs` must be a text, a pair of texts, or a batch of these")


def text_classification(body: Document) -> Document:
    ERROR.members(body, {"inputs": either(text, list_of(text)), "parameters?": anything})
    ERROR.members(body.get("parameters", {}), {"top_k?": integer}, "parameters")
    top = body.get("parameters", {}).get("top_k")
    rows = [body["inputs"]] if isinstance(body["inputs"], str) else body["inputs"]
    return [ranking(each)[:top] for each in rows]


def zero_shot(body: Document) -> Document:
    ERROR.members(body, {"inputs": text, "parameters": anything})
    given = ERROR.members(
        body["parameters"], {"candidate_labels": list_of(text), "multi_label?": boolean}, "parameters"
    )
    labels = given["candidate_labels"]
    raw = {each: share(body["inputs"], each, given.get("multi_label")) for each in labels}
    labels = sorted(labels, key=lambda each: -raw[each])
    return {"sequence": body["inputs"], "labels": labels, "scores": [raw[each] for each in labels]}


def token_classification(body: Document) -> Document:
    """As many entities as the text has words that begin with a capital or are long."""
    ERROR.members(body, {"inputs": text})
    found, start = [], 0
    for word in body["inputs"].split(" "):
        if word[:1].isupper() or len(word) > 4:
            entity = {"entity_group": pick(["PER", "LOC"], word, body["inputs"]), "score": share(word, body["inputs"])}
            found.append({**entity, "word": word, "start": start, "end": start + len(word)})
        start += len(word) + 1
    return found


def google(body: Document) -> Document:
    GOOGLE.members(body, {"document": anything, "encodingType?": one_of("UTF8", "UTF16", "NONE")})
    document = GOOGLE.members(body["document"], {"type": one_of("PLAIN_TEXT", "HTML"), "content": text}, "document")
    words = document["content"].split(". ")
    sentences = [
        {
            "text": {"content": each, "beginOffset": index},
            "sentiment": {"magnitude": share("m", each), "score": share(each)},
        }
        for index, each in enumerate(words)
    ]
    whole = {"magnitude": share("m", document), "score": share(document)}
    return {"documentSentiment": whole, "language": "en", "sentences": sentences}


def spacy(body: Document) -> Document:
    """Entities of one text, none where there is none."""
    ERROR.members(body, {"text": text, "model": one_of("en", "de")})
    found = token_classification({"inputs": body["text"]})
    kinds = {name: pick(["ORG", "GPE"], each, body["model"]) for name, each in ((each["word"], each) for each in found)}
    return [
        {"start": each["start"], "end": each["end"], "type": kinds[each["word"]], "text": each["word"]}
        for each in found
    ]


def rasa(body: Document) -> Document:
    RASA.members(body, {"text": text, "message_id?": text})
    names = ("greet", "goodbye", "affirm")
    order = [{"name": each["label"], "confidence": each["score"]} for each in ranking(body["text"], names=names)]
    entities = [
        {"start": each["start"], "end": each["end"], "value": each["word"], "entity": each["entity_group"]}
        for each in token_classification({"inputs": body["text"]})
    ]
    return {"text": body["text"], "intent": order[0], "entities": entities, "intent_ranking": order}


def deeppavlov(body: Document) -> Document:
    """One list for each text, of a label and its score."""
    DETAIL.members(body, {"x": list_of(text)})
    found = [ranking(each)[0] for each in body["x"]]
    return [[each["label"], each["score"]] for each in found]


def comprehend(body: Document) -> Document:
    """Texts that it cannot judge are in another list: the rows of the first one are fewer."""
    AWS.members(body, {"TextList": list_of(text), "LanguageCode": one_of("en", "de", "ja")})
    names = ("Positive", "Negative", "Neutral", "Mixed")
    results, errors = [], []
    for index, each in enumerate(body["TextList"]):
        if len(each) > 300:
            errors.append({"Index": index, "ErrorCode": "TEXT_SIZE_LIMIT_EXCEEDED", "ErrorMessage": "too long"})
            continue
        scores = shares(names, each, body["LanguageCode"])
        results.append(
            {"Index": index, "Sentiment": max(scores, key=scores.__getitem__).upper(), "SentimentScore": scores}
        )
    return {"ResultList": results, "ErrorList": errors}


def elser(body: Document) -> Document:
    """Weights by token: the names of the members are data."""
    ELASTIC.members(body, {"docs": list_of(anything)})
    rows = ELASTIC.rows(body["docs"], {"text_field": text}, "docs")
    found = []
    for each in rows:
        weights = {word.strip(".!?$"): 3 * share(word, each["text_field"]) for word in each["text_field"].split()}
        found.append({"predicted_value": weights})
    return {"inference_results": found}


def clarifai(body: Document) -> Document:
    """The concepts of each input are sorted; a status is in every answer, and a failure is a 200."""
    ERROR.members(body, {"inputs": list_of(anything), "user_app_id?": anything})
    texts = []
    for each in ERROR.rows(body["inputs"], {"data": anything}, "inputs"):
        data = ERROR.members(each["data"], {"text": anything}, "data")
        texts.append(ERROR.members(data["text"], {"raw": text}, "text")["raw"])
    if any("boom" in each for each in texts):
        return {"status": {"code": 10020, "description": "Failure", "details": "model not deployed"}, "outputs": []}
    outputs = []
    for each in texts:
        concepts = [
            {"id": f"ai_{item['label']}", "name": item["label"], "value": item["score"], "app_id": "main"}
            for item in ranking(each)
        ]
        outputs.append(
            {"id": f"{digest(each):x}", "status": {"code": 10000, "description": "Ok"}, "data": {"concepts": concepts}}
        )
    return {"status": {"code": 10000, "description": "Ok"}, "outputs": outputs}


def boxes(image: str, confidence: float) -> list[dict[str, Any]]:
    """From none to four boxes: how many is the image's."""
    found = [{"x": 100 * share("x", index, image), "confidence": share(index, image)} for index in range(4)]
    found = sorted((each for each in found if each["confidence"] > confidence), key=lambda each: -each["confidence"])
    return [{**each, "class": pick(["cat", "dog"], each), "class_id": digest(each) % 80} for each in found]


def yolo(body: Document) -> Document:
    ERROR.members(body, {"image": text, "confidence": number})
    found = boxes(body["image"], body["confidence"])
    return {"time": 0.25, "image": {"width": 640, "height": 480}, "predictions": found}


def yolo_batch(body: Document) -> Document:
    """A list of boxes for each image, none of them as long as another."""
    ERROR.members(body, {"images": list_of(text), "conf": number})
    found = [boxes(each, body["conf"]) for each in body["images"]]
    return {"results": [{"boxes": [[box["x"], box["confidence"], box["class_id"]] for box in each]} for each in found]}


def torchserve(body: Document) -> Document:
    """The handler for texts: an object of labels, the likeliest first; a refusal has a code and a type."""
    strict = Strict(400, lambda words: {"code": 400, "type": "BadRequestException", "message": words})
    strict.members(body, {"data": text})
    found = ranking(body["data"], names=("Business", "Sports", "World"))
    return {each["label"]: each["score"] for each in found}


def an_image(draw: Draw) -> str:
    return base64.b64encode(draw.randbytes(9)).decode()


def json_of(value: Document) -> str:
    """*value* as the adapter of `elasticsearch-elser` prints it."""
    return json.dumps(value, sort_keys=True)


def padded(rows: list[list[Any]], width: int, blank: Any) -> list[list[Any]]:
    return [[*row, *[blank] * (width - len(row))] for row in rows]


TAGGING = (
    Format(
        name="tei-predict",
        path="/predict",
        health="/health",
        samples=({"inputs": "I like you."}, {"inputs": "I do not."}),
        answer=tei_predict,
        row=a_text,
        body=lambda rows, options: {"inputs": rows[0]},
        values=("$[*].label", "$[*].score"),
        many=False,
        pairs=True,
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}}
            outputs: {label: {datatype: BYTES, shape: [n, 3]}, score: {datatype: FP64, shape: [n, 3]}}
            request: {path: /predict, rows: 1, body: {inputs: $text}}
            answer: {label: "$[*].label", score: "$[*].score"}
            """,
    ),
    Format(
        name="tei-predict-batch",
        path="/predict",
        health="/health",
        samples=({"inputs": [["I like you."], ["I do not."]]},),
        answer=tei_predict,
        row=a_text,
        body=lambda rows, options: {"inputs": [[each] for each in rows]},
        values=("$[*][*].label", "$[*][*].score"),
        pairs=True,
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}}
            outputs: {label: {datatype: BYTES, shape: [n, 3]}, score: {datatype: FP64, shape: [n, 3]}}
            request: {path: /predict, body: {inputs: {$each: [$text]}}}
            answer: {label: "$[*][*].label", score: "$[*][*].score"}
            """,
    ),
    Format(
        name="hf-text-classification",
        path="/",
        samples=({"inputs": "I like you. I love you"},),
        answer=text_classification,
        row=a_text,
        body=lambda rows, options: {"inputs": rows[0]},
        values=("$[*][*].label", "$[*][*].score"),
        many=False,
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}}
            outputs: {label: {datatype: BYTES, shape: [n, 3]}, score: {datatype: FP64, shape: [n, 3]}}
            request: {path: /, rows: 1, body: {inputs: $text}}
            answer: {label: "$[*][*].label", score: "$[*][*].score"}
            """,
    ),
    Format(
        name="hf-text-classification-list",
        path="/",
        samples=({"inputs": ["I like you. I love you", "no"], "parameters": {"top_k": 2}},),
        answer=text_classification,
        row=a_text,
        options=lambda draw: draw.randrange(1, 4),
        body=lambda rows, options: {"inputs": rows, "parameters": {"top_k": options}},
        values=("$[*][*].label", "$[*][*].score"),
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}, k: {datatype: INT64, shape: []}}
            outputs: {label: {datatype: BYTES, shape: [n, -1]}, score: {datatype: FP64, shape: [n, -1]}}
            request: {path: /, body: {inputs: $text, parameters: {top_k: $k}}}
            answer: {label: "$[*][*].label", score: "$[*][*].score"}
            """,
    ),
    Format(
        name="hf-zero-shot",
        path="/",
        samples=(
            {"inputs": "I just got a new phone", "parameters": {"candidate_labels": ["mobile", "website", "billing"]}},
        ),
        answer=zero_shot,
        row=a_text,
        options=lambda draw: [draw.text() for _ in range(3)],
        body=lambda rows, options: {"inputs": rows[0], "parameters": {"candidate_labels": options}},
        values=("$.labels[*]", "$.scores[*]"),
        many=False,
        echoes=True,
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: []}, label: {datatype: BYTES, shape: [k]}}
            outputs: {label: {datatype: BYTES, shape: [k]}, score: {datatype: FP64, shape: [k]}}
            request: {path: /, body: {inputs: $text, parameters: {candidate_labels: $label}}}
            answer: {label: $.labels, score: $.scores}
            """,
    ),
    Format(
        name="hf-token-classification",
        path="/",
        samples=({"inputs": "My name is Sarah Jessica Parker"},),
        answer=token_classification,
        row=lambda draw: f"Anna {draw.text()}",
        body=lambda rows, options: {"inputs": rows[0]},
        values=("$[*].entity_group", "$[*].score", "$[*].word", "$[*].start", "$[*].end"),
        many=False,
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: []}}
            outputs:
              group: {datatype: BYTES, shape: [m]}
              score: {datatype: FP64, shape: [m]}
              word: {datatype: BYTES, shape: [m]}
              start: {datatype: INT64, shape: [m]}
              end: {datatype: INT64, shape: [m]}
            request: {path: /, body: {inputs: $text}}
            answer:
              group: "$[*].entity_group"
              score: "$[*].score"
              word: "$[*].word"
              start: "$[*].start"
              end: "$[*].end"
            """,
    ),
    Format(
        name="google-sentiment",
        path="/v1/documents:analyzeSentiment",
        samples=(
            {"document": {"type": "PLAIN_TEXT", "content": "Enjoy your vacation! It is. Good"}, "encodingType": "UTF8"},
        ),
        answer=google,
        row=lambda draw: ". ".join(draw.of("text", draw.randrange(1, 4))),
        body=lambda rows, options: {"document": {"type": "PLAIN_TEXT", "content": rows[0]}, "encodingType": "UTF8"},
        values=("$.documentSentiment.score", "$.documentSentiment.magnitude", "$.sentences[*].sentiment.score"),
        many=False,
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: []}}
            outputs:
              score: {datatype: FP64, shape: []}
              magnitude: {datatype: FP64, shape: []}
              sentence_score: {datatype: FP64, shape: [-1]}
            request:
              path: /v1/documents:analyzeSentiment
              body: {document: {type: PLAIN_TEXT, content: $text}, encodingType: UTF8}
            answer:
              score: $.documentSentiment.score
              magnitude: $.documentSentiment.magnitude
              sentence_score: "$.sentences[*].sentiment.score"
            """,
    ),
    Format(
        name="spacy-entities",
        path="/ent",
        samples=({"text": "Pastafarians are smarter than people with Coca Cola bottles.", "model": "en"},),
        answer=spacy,
        row=lambda draw: f"Anna {draw.text()}",
        options=lambda draw: draw.choice(("en", "de")),
        body=lambda rows, options: {"text": rows[0], "model": options},
        values=("$[*].start", "$[*].end", "$[*].type", "$[*].text"),
        many=False,
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: []}, language: {datatype: BYTES, shape: []}}
            outputs:
              start: {datatype: INT64, shape: [m]}
              end: {datatype: INT64, shape: [m]}
              type: {datatype: BYTES, shape: [m]}
              word: {datatype: BYTES, shape: [m]}
            request: {path: /ent, body: {text: $text, model: $language}}
            answer: {start: "$[*].start", end: "$[*].end", type: "$[*].type", word: "$[*].text"}
            """,
    ),
    Format(
        name="rasa-nlu",
        path="/model/parse",
        health="/status",
        samples=({"text": "hello"}, {"text": "good Bye"}),
        answer=rasa,
        row=a_text,
        body=lambda rows, options: {"text": rows[0]},
        values=("$.intent.name", "$.intent.confidence", "$.entities[*].entity", "$.intent_ranking[*].confidence"),
        many=False,
        echoes=True,
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: []}}
            outputs:
              intent: {datatype: BYTES, shape: []}
              confidence: {datatype: FP64, shape: []}
              entity: {datatype: BYTES, shape: [-1]}
              ranking: {datatype: FP64, shape: [3]}
            request: {path: /model/parse, body: {text: $text}}
            answer:
              intent: $.intent.name
              confidence: $.intent.confidence
              entity: "$.entities[*].entity"
              ranking: "$.intent_ranking[*].confidence"
            """,
    ),
    Format(
        name="deeppavlov",
        path="/model",
        samples=({"x": ["Computer science is cool", "no"]},),
        answer=deeppavlov,
        row=a_text,
        body=lambda rows, options: {"x": rows},
        values=("$[*][0]", "$[*][1]"),
        by_hand="""
            inputs: {x: {datatype: BYTES, shape: [n]}}
            outputs: {label: {datatype: BYTES, shape: [n]}, score: {datatype: FP64, shape: [n]}}
            request: {path: /model, body: {x: $x}}
            answer: {label: "$[*][0]", score: "$[*][1]"}
            """,
    ),
    Format(
        name="aws-comprehend-batch",
        path="/",
        samples=({"TextList": ["I love it", "I hate it"], "LanguageCode": "en"},),
        answer=comprehend,
        row=a_text,
        options=lambda draw: draw.choice(("en", "de", "ja")),
        body=lambda rows, options: {"TextList": rows, "LanguageCode": options},
        values=("$.ResultList[*].Sentiment", "$.ResultList[*].SentimentScore"),
        fails=({"TextList": ["a" * 301, "fine"], "LanguageCode": "en"},),
        flag="$.ErrorList",
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}, language: {datatype: BYTES, shape: []}}
            outputs:
              sentiment: {datatype: BYTES, shape: [n]}
              positive: {datatype: FP64, shape: [n]}
              negative: {datatype: FP64, shape: [n]}
              neutral: {datatype: FP64, shape: [n]}
              mixed: {datatype: FP64, shape: [n]}
            request: {path: /, body: {TextList: $text, LanguageCode: $language}}
            answer:
              sentiment: "$.ResultList[*].Sentiment"
              positive: "$.ResultList[*].SentimentScore.Positive"
              negative: "$.ResultList[*].SentimentScore.Negative"
              neutral: "$.ResultList[*].SentimentScore.Neutral"
              mixed: "$.ResultList[*].SentimentScore.Mixed"
            order: "$.ResultList[*].Index"
            """,
    ),
    Format(
        name="elasticsearch-elser",
        path="/_ml/trained_models/elser/_infer",
        samples=({"docs": [{"text_field": "The fool doth think he is wise"}]},),
        answer=elser,
        row=a_text,
        body=lambda rows, options: {"docs": [{"text_field": each} for each in rows]},
        values=("$.inference_results[*].predicted_value",),
        adapter=Adapter(
            source="""
import json
import numpy as np

def request(call):
    texts = [text.decode() for text in call.inputs["text"]]
    return "/_ml/trained_models/elser/_infer", {"docs": [{"text_field": text} for text in texts]}

def answer(call, status, body):
    rows = [json.dumps(row["predicted_value"], sort_keys=True).encode() for row in body["inference_results"]]
    return {"weights": np.array(rows, object)}
""",
            models="""
inputs: {text: {datatype: BYTES, shape: [-1]}}
outputs: {weights: {datatype: BYTES, shape: [-1]}}
""",
            inputs=lambda bodies: {"text": [each["text_field"] for each in bodies[0]["docs"]]},
            outputs=lambda answers: {
                "weights": [json_of(each["predicted_value"]) for each in answers[0]["inference_results"]]
            },
        ),
    ),
    Format(
        name="clarifai",
        path="/v2/models/m/outputs",
        samples=({"inputs": [{"data": {"text": {"raw": "I love your product"}}}, {"data": {"text": {"raw": "no"}}}]},),
        answer=clarifai,
        row=a_text,
        body=lambda rows, options: {"inputs": [{"data": {"text": {"raw": each}}} for each in rows]},
        values=("$.outputs[*].data.concepts[*].name", "$.outputs[*].data.concepts[*].value"),
        fails=({"inputs": [{"data": {"text": {"raw": "boom"}}}]},),
        flag="$.status",
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}}
            outputs: {name: {datatype: BYTES, shape: [n, -1]}, value: {datatype: FP64, shape: [n, -1]}}
            request: {path: /v2/models/m/outputs, body: {inputs: {$each: {data: {text: {raw: $text}}}}}}
            answer: {name: "$.outputs[*].data.concepts[*].name", value: "$.outputs[*].data.concepts[*].value"}
            success: {$.status.code: 10000}
            error: $.status.details
            """,
    ),
    Format(
        name="yolo",
        path="/infer",
        samples=({"image": "aGVsbG8gd29ybGQ=", "confidence": 0.25},),
        answer=yolo,
        row=an_image,
        options=lambda draw: draw.random() / 2,
        body=lambda rows, options: {"image": rows[0], "confidence": options},
        values=(
            "$.predictions[*].x",
            "$.predictions[*].confidence",
            "$.predictions[*].class",
            "$.predictions[*].class_id",
        ),
        many=False,
        by_hand="""
            inputs: {image: {datatype: BYTES, shape: []}, confidence: {datatype: FP64, shape: []}}
            outputs:
              x: {datatype: FP64, shape: [m]}
              confidence: {datatype: FP64, shape: [m]}
              class: {datatype: BYTES, shape: [m]}
              class_id: {datatype: INT64, shape: [m]}
            request: {path: /infer, body: {image: $image, confidence: $confidence}}
            answer:
              x: "$.predictions[*].x"
              confidence: "$.predictions[*].confidence"
              class: "$.predictions[*].class"
              class_id: "$.predictions[*].class_id"
            """,
    ),
    Format(
        name="yolo-batch",
        path="/batch",
        samples=({"images": ["aGVsbG8=", "d29ybGQ="], "conf": 0.25},),
        answer=yolo_batch,
        row=an_image,
        options=lambda draw: draw.random() / 2,
        body=lambda rows, options: {"images": rows, "conf": options},
        values=("$.results[*].boxes",),
        adapter=Adapter(
            source="""
import numpy as np

def request(call):
    images = [image.decode() for image in call.inputs["images"]]
    return "/batch", {"images": images, "conf": call.inputs["conf"].item()}

def answer(call, status, body):
    boxes = [row["boxes"] for row in body["results"]]
    padded = np.zeros((len(boxes), 4, 3))
    for index, those in enumerate(boxes):
        padded[index, :len(those)] = np.array(those).reshape(-1, 3)
    return {"boxes": padded, "count": np.array([len(those) for those in boxes], np.int64)}
""",
            models="""
inputs: {images: {datatype: BYTES, shape: [-1]}, conf: {datatype: FP64, shape: []}}
outputs: {boxes: {datatype: FP64, shape: [-1, 4, 3]}, count: {datatype: INT64, shape: [-1]}}
""",
            inputs=lambda bodies: bodies[0],
            outputs=lambda answers: {
                "boxes": padded([each["boxes"] for each in answers[0]["results"]], 4, [0, 0, 0]),
                "count": [len(each["boxes"]) for each in answers[0]["results"]],
            },
        ),
    ),
    Format(
        name="torchserve-text",
        path="/predictions/m",
        health="/ping",
        samples=({"data": "Bloomberg has decided to publish"},),
        answer=torchserve,
        row=a_text,
        body=lambda rows, options: {"data": rows[0]},
        values=("$",),
        many=False,
        by_hand="""
            inputs: {text: {datatype: BYTES, shape: [n]}}
            outputs:
              business: {datatype: FP64, shape: [n]}
              sports: {datatype: FP64, shape: [n]}
              world: {datatype: FP64, shape: [n]}
            request: {path: /predictions/m, rows: 1, body: {data: $text}}
            answer: {business: $.Business, sports: $.Sports, world: $.World}
            """,
    ),
)
