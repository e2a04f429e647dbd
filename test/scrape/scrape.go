// Package scrape reads the metrics of agents, for tests that compare what an agent counted before and after something. An
// agent gives scrapes that follow each other quickly the same text; the tests need the present.
package scrape

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// pause is the time between two requests while the agent returns a text that was seen before.
const pause = 20 * time.Millisecond

// seen has the entity tag of the last text by URL.
var seen sync.Map

// Text returns the text at url, which is the metrics of an agent that no other process scrapes. The agent made it
// after the call had begun. It waits for at most a second for that, and ends with ctx. It is safe for concurrent
// use.
func Text(ctx context.Context, client *http.Client, url string) (string, error) {
	for {
		text, tag, err := get(ctx, client, url)
		if err != nil {
			return "", err
		}
		if last, _ := seen.Swap(url, tag); tag == "" || last != tag {
			return text, nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// get returns the body of the reply at url, and its entity tag; "" if it has none.
func get(ctx context.Context, client *http.Client, url string) (text, tag string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", "", err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if resp.StatusCode != http.StatusOK {
		return "", "", fmt.Errorf("reading metrics: %s", resp.Status)
	}
	body, err := io.ReadAll(resp.Body)
	return string(body), resp.Header.Get("ETag"), err
}
