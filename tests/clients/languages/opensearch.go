// Calls of an application with opensearch-go, each answer on a line: URL INDEX
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/opensearch-project/opensearch-go/v4"
	"github.com/opensearch-project/opensearch-go/v4/opensearchapi"
)

func main() {
	url, index, ctx := os.Args[1], os.Args[2], context.Background()
	config := opensearch.Config{Addresses: []string{url}, CompressRequestBody: true}
	client, err := opensearchapi.NewClient(opensearchapi.Config{Client: config})
	if err != nil {
		panic(err)
	}
	search := func(call, rest string) {
		body := strings.NewReader(`{"query":{"match":{"text":"cat"}}` + rest + `}`)
		answer, err := client.Search(ctx, &opensearchapi.SearchReq{Indices: []string{index}, Body: body})
		line(call, answer, err)
	}
	info, err := client.Info(ctx, nil)
	line("info", info, err)
	created, err := client.Indices.Create(ctx, opensearchapi.IndicesCreateReq{Index: index})
	line("create", created, err)
	lines := ""
	for number, text := range []string{"a cat", "a dog", "the cat and the dog"} {
		lines += fmt.Sprintf("{\"index\":{\"_id\":\"%d\"}}\n{\"text\":%q,\"number\":%d}\n", number, text, number)
	}
	refresh := opensearchapi.BulkParams{Refresh: "true"}
	written, err := client.Bulk(ctx, opensearchapi.BulkReq{Index: index, Body: strings.NewReader(lines), Params: refresh})
	line("bulk", written, err)
	found, err := client.Document.Get(ctx, opensearchapi.DocumentGetReq{Index: index, DocumentID: "1"})
	line("get", found, err)
	none, err := client.Document.Get(ctx, opensearchapi.DocumentGetReq{Index: index, DocumentID: "none"})
	line("missing", none, err)
	search("search", `,"aggs":{"most":{"max":{"field":"number"}}}`)
	both := `{"index":"` + index + "\"}\n" + `{"query":{"match":{"text":"cat"}}}` + "\n"
	several, err := client.MSearch(ctx, opensearchapi.MSearchReq{Body: strings.NewReader(both)})
	line("msearch", several, err)
	search("refused", `,"nothing":1`)
	// The typed answer has no place for what it does not know, so the section's is read from the body.
	section := `{"query":{"match":{"text":"cat"}},"rescore":{"ttc":{"method":"spectral"}}}`
	request, err := http.NewRequest("POST", "/"+index+"/_search", strings.NewReader(section))
	if err != nil {
		panic(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Client.Perform(request)
	var answer any
	if err == nil {
		err = json.NewDecoder(response.Body).Decode(&answer)
	}
	line("section", answer, err)
	deleted, err := client.Indices.Delete(ctx, opensearchapi.IndicesDeleteReq{Indices: []string{index}})
	line("delete", deleted, err)
}

func line(call string, answer any, err error) {
	if err != nil {
		answer = map[string]any{"failed": err.Error()}
	}
	text, _ := json.Marshal(map[string]any{"call": call, "answer": answer})
	fmt.Println(string(text))
}
