// Sends an image and its label in binary as many do it by hand: no header length, and JSON as the content type.
// The pieces are never joined, so that the body is chunked.
//
// go run headerless.go URL FILE [binary]: FILE holds FP32 [1, 3, 224, 224]; prints the reply's JSON and, in base64,
// what follows it. With "binary" the outputs are asked for in binary.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
)

type tensor struct {
	Name       string         `json:"name"`
	Datatype   string         `json:"datatype"`
	Shape      []int          `json:"shape"`
	Parameters map[string]int `json:"parameters"`
}

func described(name, datatype string, blob []byte, shape ...int) tensor {
	return tensor{name, datatype, shape, map[string]int{"binary_data_size": len(blob)}}
}

func main() {
	url, file := os.Args[1], os.Args[2]
	image, err := os.ReadFile(file)
	check(err)
	label := []byte(`}{" `) // bytes that a careless search for the end of the JSON trips over

	request := map[string]any{"inputs": []tensor{
		described("image", "FP32", image, 1, 3, 224, 224),
		described("label", "UINT8", label, 4),
	}}
	if len(os.Args) > 3 && os.Args[3] == "binary" {
		request["parameters"] = map[string]bool{"binary_data_output": true}
	}
	header, err := json.Marshal(request)
	check(err)

	body := io.MultiReader(bytes.NewReader(header), bytes.NewReader(image), bytes.NewReader(label))
	response, err := http.Post(url, "application/json", body)
	check(err)
	defer response.Body.Close()
	reply, err := io.ReadAll(response.Body)
	check(err)
	if response.StatusCode != http.StatusOK {
		log.Fatalf("%s: %s", response.Status, reply)
	}

	length := len(reply)
	if said := response.Header.Get("Inference-Header-Content-Length"); said != "" {
		length, err = strconv.Atoi(said)
		check(err)
	}
	printed, err := json.Marshal(map[string]any{"reply": json.RawMessage(reply[:length]), "blobs": reply[length:]})
	check(err)
	fmt.Println(string(printed))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
