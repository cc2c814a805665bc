// Calls of an application with go-elasticsearch, each answer on a line: URL INDEX
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/elastic/go-elasticsearch/v9"
	"github.com/elastic/go-elasticsearch/v9/esapi"
	"github.com/elastic/go-elasticsearch/v9/esutil"
)

func main() {
	url, index := os.Args[1], os.Args[2]
	client, err := elasticsearch.NewClient(elasticsearch.Config{Addresses: []string{url}, CompressRequestBody: true})
	if err != nil {
		panic(err)
	}
	query := `{"query":{"match":{"text":"cat"}}%s}`
	search := func(rest string) func() (*esapi.Response, error) {
		return func() (*esapi.Response, error) {
			body := strings.NewReader(fmt.Sprintf(query, rest))
			return client.Search(client.Search.WithIndex(index), client.Search.WithBody(body))
		}
	}
	show("info", func() (*esapi.Response, error) { return client.Info() })
	show("create", func() (*esapi.Response, error) { return client.Indices.Create(index) })
	show("exists", func() (*esapi.Response, error) { return client.Indices.Exists([]string{index}) })
	config := esutil.BulkIndexerConfig{Client: client, Index: index, Refresh: "true", NumWorkers: 1}
	bulk, err := esutil.NewBulkIndexer(config)
	if err != nil {
		panic(err)
	}
	for number, text := range []string{"a cat", "a dog", "the cat and the dog"} {
		document := fmt.Sprintf(`{"text":%q,"number":%d}`, text, number)
		item := esutil.BulkIndexerItem{Action: "index", DocumentID: fmt.Sprint(number), Body: strings.NewReader(document)}
		if err := bulk.Add(context.Background(), item); err != nil {
			panic(err)
		}
	}
	if err := bulk.Close(context.Background()); err != nil {
		panic(err)
	}
	line("bulk", map[string]any{"indexed": bulk.Stats().NumIndexed, "failed": bulk.Stats().NumFailed})
	show("get", func() (*esapi.Response, error) { return client.Get(index, "1") })
	show("missing", func() (*esapi.Response, error) { return client.Get(index, "none") })
	show("search", search(`,"aggs":{"most":{"max":{"field":"number"}}}`))
	show("msearch", func() (*esapi.Response, error) {
		return client.Msearch(strings.NewReader(`{"index":"` + index + "\"}\n" + fmt.Sprintf(query, "") + "\n"))
	})
	show("refused", search(`,"nothing":1`))
	show("section", search(`,"rescore":{"ttc":{"method":"spectral"}}`))
	show("delete", func() (*esapi.Response, error) { return client.Indices.Delete([]string{index}) })
}

func show(call string, run func() (*esapi.Response, error)) {
	response, err := run()
	if err != nil {
		line(call, map[string]any{"failed": err.Error()})
		return
	}
	body, _ := io.ReadAll(response.Body)
	var answer any
	_ = json.Unmarshal(body, &answer)
	line(call, map[string]any{"status": response.StatusCode, "body": answer})
}

func line(call string, answer any) {
	text, _ := json.Marshal(map[string]any{"call": call, "answer": answer})
	fmt.Println(string(text))
}
