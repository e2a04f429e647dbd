package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/test/peer"
)

// pagePort is the port of the page in the manifest.
const pagePort = 8353

// checkPage opens the page of the agent through kubectl port-forward.
func (a *attributionTest) checkPage(ctx context.Context, s *suite) (string, error) {
	if a.agent == "" {
		return "", errors.New("there is no pod that asks")
	}
	const workload = nonsenseNS + "/asker"
	return "Deployment " + workload + ", parent " + nonsenseParent, awaitPage(ctx, s, a.agent, "nxdomain", workload, nonsenseParent)
}

// awaitPage opens the page of an agent's pod through kubectl port-forward, and waits until the workload is the
// first one in this order, and the parent is among those of wasted names. The search path makes several parents with
// as many queries.
func awaitPage(ctx context.Context, s *suite, agent, order, workload, parent string) error {
	address, stop, err := s.cluster.PortForward(ctx, agentNamespace, agent, pagePort)
	if err != nil {
		return err
	}
	defer stop()
	client := &http.Client{Transport: &http.Transport{DialContext: s.cluster.Dial, DisableKeepAlives: true}}
	return peer.Await(ctx, "the page to name the Deployment", func(ctx context.Context) error {
		text, err := get(ctx, client, "http://"+address+"/?by=workload&sort-clients="+order)
		if err != nil {
			return err
		}
		clients, parents := rowHeads(text, "clients"), rowHeads(text, "waste")
		if len(clients) == 0 || clients[0] != workload || !slices.Contains(parents, parent) {
			return fmt.Errorf("want first %s of %q, and %s of %q", workload, clients, parent, parents)
		}
		return nil
	})
}

// get returns the body of a page.
func get(ctx context.Context, client *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return string(text), err
}

// rowHead is the head of a row of the page, and tag is one of the elements in it.
var (
	rowHead = regexp.MustCompile(`<th scope="row">(.*?)</th>`)
	tag     = regexp.MustCompile(`<[^>]*>`)
)

// rowHeads returns the heads of the rows of a table of the page.
func rowHeads(page, table string) (heads []string) {
	_, rows, _ := strings.Cut(page, `<tbody id="`+table+`-rows">`)
	rows, _, _ = strings.Cut(rows, "</tbody>")
	for _, m := range rowHead.FindAllStringSubmatch(rows, -1) {
		heads = append(heads, html.UnescapeString(tag.ReplaceAllString(m[1], "")))
	}
	return heads
}
