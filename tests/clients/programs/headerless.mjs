// Sends an image and its label in binary as many do it by hand: no header length, and JSON as the content type.
//
// node headerless.mjs URL FILE [binary]: FILE holds FP32 [1, 3, 224, 224]; prints the reply's JSON and, in base64,
// what follows it. With "binary" the outputs are asked for in binary.

import { readFile } from "node:fs/promises";

const [url, file, asked] = process.argv.slice(2);
const image = await readFile(file);
const label = Buffer.from('}{" '); // bytes that a careless search for the end of the JSON trips over

const described = (name, datatype, shape, blob) => ({
  name, datatype, shape, parameters: { binary_data_size: blob.length },
});
const request = {
  inputs: [described("image", "FP32", [1, 3, 224, 224], image), described("label", "UINT8", [4], label)],
};
if (asked === "binary") request.parameters = { binary_data_output: true };

const response = await fetch(url, {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: new Blob([JSON.stringify(request), image, label]),
});
if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
const said = response.headers.get("Inference-Header-Content-Length");
if (said === null) {
  console.log(JSON.stringify({ reply: await response.json(), blobs: "" }));
} else {
  const reply = Buffer.from(await response.arrayBuffer());
  const [header, blobs] = [reply.subarray(0, Number(said)), reply.subarray(Number(said))];
  console.log(JSON.stringify({ reply: JSON.parse(header), blobs: blobs.toString("base64") }));
}
