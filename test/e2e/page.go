package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"regexp"
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
	want := map[string]string{"clients": nonsenseNS + "/asker", "waste": nonsenseParent}
	return "Deployment " + want["clients"] + ", parent " + want["waste"], awaitPage(ctx, s, a.agent, "nxdomain", want)
}

// awaitPage opens the page of an agent's pod through kubectl port-forward, and waits until the first rows of
// these tables are the ones wanted. Clients are workloads in this order.
func awaitPage(ctx context.Context, s *suite, agent, order string, want map[string]string) error {
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
		for table, name := range want {
			if got := firstRow(text, table); got != name {
				return fmt.Errorf("the first row of %s is %q", table, got)
			}
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

// rowHead is the head of a row of the page.
var rowHead = regexp.MustCompile(`<th scope="row">(?:<a [^>]*>)?([^<]*)`)

// firstRow returns the head of the first row of a table of the page, "" if there is none.
func firstRow(page, table string) string {
	_, rows, _ := strings.Cut(page, `<tbody id="`+table+`-rows">`)
	rows, _, _ = strings.Cut(rows, "</tbody>")
	if m := rowHead.FindStringSubmatch(rows); m != nil {
		return html.UnescapeString(m[1])
	}
	return ""
}
